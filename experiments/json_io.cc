#include "experiments/json_io.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <system_error>
#include <vector>

#include "quant/error.h"

namespace zeropp::experiments {
namespace {

/// Refuses a key that an object already has; the parser itself would keep the last one.
class DuplicateCheck {
 public:
  explicit DuplicateCheck(std::string source) : source_(std::move(source)) {}
  bool operator()(int, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      Object& object = open_.back();
      object.last = parsed.get<std::string>();
      if (!object.keys.insert(object.last).second) {
        throw UsageError(source_, "every key once in an object", "'" + path() + "' twice");
      }
    }
    return true;
  }

 private:
  struct Object {
    std::set<std::string> keys;
    std::string last;
  };
  std::string path() const {
    std::string text;
    for (const Object& object : open_) text += (text.empty() ? "" : ".") + object.last;
    return text;
  }
  std::string source_;
  std::vector<Object> open_;
};

void newline(std::string& out, int indent, int depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent * depth), ' ');
}

bool is_flat(const Json& value) {
  for (const auto& item : value) {
    if (item.is_structured()) return false;
  }
  return true;
}

void append(std::string& out, const Json& value, int indent, int depth) {
  const bool object = value.is_object();
  if (!value.is_structured()) {
    out += value.is_number_float() ? float_text(value.get<double>())
                                   : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  if (value.empty()) {
    out += object ? "{}" : "[]";
    return;
  }
  // A list of plain values reads better on one line.
  const int inner = (!object && is_flat(value)) ? -1 : indent;
  out += object ? '{' : '[';
  bool first = true;
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (!first) out += inner < 0 ? ", " : ",";
    first = false;
    newline(out, inner, depth + 1);
    if (object) {
      out += Json(it.key()).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
    }
    append(out, *it, indent, depth + 1);
  }
  newline(out, inner, depth);
  out += object ? '}' : ']';
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  try {
    return Json::parse(text, DuplicateCheck(source));
  } catch (const Json::exception& e) {
    std::string what = e.what();  // "[json.exception.parse_error.101] parse error at line ..."
    if (const auto end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    throw UsageError(source, "valid JSON", what);
  }
}

std::string read_text(const std::filesystem::path& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::error_code ec;
  if (!file || std::filesystem::is_directory(path, ec)) {
    throw UsageError(path.string(), "a file that can be read",
                     std::filesystem::is_directory(path, ec) ? "a folder" : reason(errno));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Json read_json(const std::filesystem::path& path) {
  return parse_json(read_text(path), path.string());
}

std::string float_text(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";  // Stays a float when read.
  return text;
}

double to_double(const Json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw UsageError("json", "a number, \"nan\", \"inf\" or \"-inf\"", value.dump());
}

std::string to_text(const Json& value, int indent) {
  std::string out;
  append(out, value, indent, 0);
  return out;
}

void cannot_write(const std::filesystem::path& path, int error) {
  throw UsageError("output", "a file that can be written",
                   path.string() + ": " + reason(error));
}

void make_directory(const std::filesystem::path& path) {
  std::error_code ec;
  std::filesystem::create_directories(path, ec);
  if (ec)
    throw UsageError("output", "a folder that can be made",
                     path.string() + ": " + ec.message());
}

void write_atomic(const std::filesystem::path& name, std::string_view text) {
  namespace fs = std::filesystem;
  std::error_code none;
  // A link stays one; what is no file (a device, a pipe) cannot be replaced and is written to.
  const fs::path path =
      fs::is_symlink(fs::symlink_status(name, none)) ? fs::weakly_canonical(name, none) : name;
  const fs::file_status status = fs::status(path, none);
  const bool replaces = !fs::exists(status) || fs::is_regular_file(status);
  const fs::path temporary =
      replaces ? fs::path(path.string() + fmt::format(".tmp{}", ::getpid())) : path;
  const auto fail = [&](int error) {
    std::error_code ignored;
    if (replaces) fs::remove(temporary, ignored);
    cannot_write(path, error);
  };
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) fail(errno);
  const bool wrote = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int write_error = errno;
  if (std::fclose(file) != 0 || !wrote) fail(wrote ? errno : write_error);
  if (!replaces) return;
  std::error_code ec;
  fs::rename(temporary, path, ec);
  if (ec) fail(ec.value());
}

}  // namespace zeropp::experiments
