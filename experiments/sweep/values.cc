// Lists of values as Hydra writes them on the command line.
#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "experiments/sweep/sweep.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

constexpr double kMostValues = 10'000;

/// "scale=fp16" goes on with the spec before it.
bool continues_spec(std::string_view rest) {
  std::size_t n = 0;
  while (n < rest.size() &&
         (std::isalnum(static_cast<unsigned char>(rest[n])) != 0 || rest[n] == '_')) {
    ++n;
  }
  return n > 0 && n < rest.size() && rest[n] == '=';
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> pieces(1);
  int depth = 0;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '(' || c == '[' || c == '{') {
      ++depth;
    } else if (c == ')' || c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth == 0 && !continues_spec(text.substr(i + 1))) {
      pieces.emplace_back();
      continue;
    }
    pieces.back() += c;
  }
  return pieces;
}

Json one_value(std::string text) {
  while (!text.empty() && text.front() == ' ') text.erase(0, 1);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  if (text.size() >= 2 && text.front() == '\'' && text.back() == '\'') {
    return text.substr(1, text.size() - 2);
  }
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return text;
  return value.is_structured() ? parse_json(text, "sweep") : value;
}

std::vector<Json> range(const std::string& text) {
  const auto pieces = split(text);
  std::vector<double> x;
  bool whole = true;
  for (const std::string& piece : pieces) {
    const Json value = one_value(piece);
    if (!value.is_number()) throw UsageError("sweep", "numbers in range()", "'" + text + "'");
    whole = whole && value.is_number_integer();
    x.push_back(value.get<double>());
  }
  if (x.size() == 1) x.insert(x.begin(), 0);
  if (x.size() == 2) x.push_back(1);
  const double steps = x.size() == 3 && x[2] != 0 ? std::ceil((x[1] - x[0]) / x[2] - 1e-9) : 0;
  if (!(steps >= 1) || steps > kMostValues) {
    throw UsageError("sweep",
                     fmt::format("range(start,stop,step) of 1 to {} values", kMostValues),
                     "range(" + text + ")");
  }
  std::vector<Json> values;
  for (int i = 0; i < static_cast<int>(steps); ++i) {
    const double value = x[0] + i * x[2];
    if (whole) {
      values.emplace_back(static_cast<std::int64_t>(value));
    } else {
      values.emplace_back(std::stod(fmt::format("{:.12g}", value)));
    }
  }
  return values;
}

}  // namespace

std::vector<Json> sweep_values(const std::string& text) {
  const auto inside = [&](std::string_view word) -> std::string {
    if (!text.starts_with(word) || !text.ends_with(')')) return "";
    return text.substr(word.size(), text.size() - word.size() - 1);
  };
  if (const std::string list = inside("range("); !list.empty()) return range(list);
  const std::string list = inside("choice(");
  std::vector<Json> values;
  for (std::string& piece : split(list.empty() ? text : list)) {
    values.push_back(one_value(std::move(piece)));
  }
  return values;
}

}  // namespace zeropp::experiments
