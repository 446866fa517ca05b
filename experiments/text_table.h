#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeropp::experiments {

/// The text with control characters (C0, DEL, C1 as UTF-8) as \\xNN: names out of files shall
/// not steer a terminal.
std::string printable(std::string_view text);

/// Rows of text under a header; every row has as many cells as the header. Cells
/// are made printable().
struct TextTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::size_t left = 1;  ///< Columns that are aligned left; the others hold numbers.

  std::string text() const;
  std::string markdown() const;
};

std::string human_bytes(double bytes);      ///< "1.24 MB", powers of 1000.
std::string human_seconds(double seconds);  ///< "1.24 s", "3m05s", "12 ms".

}  // namespace zeropp::experiments
