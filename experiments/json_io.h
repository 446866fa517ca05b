#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace zeropp::experiments {

/// Key order is kept: people read these files.
using Json = nlohmann::ordered_json;

/// Parses one JSON value. UsageError names `source` and the place: syntax errors, and a key
/// that occurs twice in one object.
Json parse_json(std::string_view text, const std::string& source);
/// UsageError when the file cannot be read.
Json read_json(const std::filesystem::path& path);
std::string read_text(const std::filesystem::path& path);

/// JSON text. Finite floats are written with the fewest digits that read back as the same bits,
/// non-finite ones as the strings "nan", "inf", "-inf". indent < 0: one line.
std::string to_text(const Json& value, int indent = 2);
std::string float_text(double value);
/// A number, or one of the three strings, back to a double.
double to_double(const Json& value);

/// Writes to a temporary name in the same folder, then renames: readers see the old file or the
/// new one. A link stays a link; a device or a pipe is written to. UsageError when it cannot
/// be.
void write_atomic(const std::filesystem::path& name, std::string_view text);
/// UsageError of an output that failed with errno `error`.
[[noreturn]] void cannot_write(const std::filesystem::path& path, int error);
/// create_directories with a UsageError.
void make_directory(const std::filesystem::path& path);

}  // namespace zeropp::experiments
