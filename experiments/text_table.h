#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zeropp::experiments {

/// Text of others (names in files) that a terminal can show: control characters become '?'.
std::string printable(std::string text);

/// Rows of text under a header; every row has as many cells as the header.
struct TextTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::size_t left = 1;  ///< Columns that are aligned left; the others hold numbers.

  std::string text() const;  ///< Both have printable() cells.
  std::string markdown() const;
};

std::string human_bytes(double bytes);      ///< "1.24 MB", powers of 1000.
std::string human_seconds(double seconds);  ///< "1.24 s", "3m05s", "12 ms".

}  // namespace zeropp::experiments
