#pragma once

#include <cstdint>
#include <vector>

namespace zeropp::zero {

/// The King James text as Debian's bible-kjv prints it, 4,404,412 bytes.
/// UsageError: the program is not installed, fails, or prints another number of bytes.
std::vector<std::uint8_t> bible_text();

}  // namespace zeropp::zero
