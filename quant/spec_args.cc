#include "quant/spec_args.h"

#include <charconv>

#include "quant/error.h"

namespace zeropp::quant {
namespace {

constexpr std::size_t kMaxBlock = std::size_t{1} << 30;

}  // namespace

std::string choice_arg(const CodecSpec& spec, const std::string& key, std::string fallback,
                       std::initializer_list<std::string_view> allowed) {
  const auto it = spec.args.find(key);
  if (it == spec.args.end()) return fallback;
  std::string list;
  for (const std::string_view word : allowed) {
    if (word == it->second) return it->second;
    list += (list.empty() ? "" : " or ") + std::string(word);
  }
  throw UsageError("codec " + spec.name, key + "=" + list, "'" + it->second + "'");
}

void refuse_arg(const CodecSpec& spec, const std::string& key, std::string_view value,
                std::string_view where) {
  const auto it = spec.args.find(key);
  if (it == spec.args.end() || it->second != value) return;
  const std::string arg = key + "=" + it->second;
  throw UsageError("codec " + spec.name, arg + " " + std::string(where) + " alone",
                   "'" + arg + "' elsewhere");
}

void refuse_shift(const CodecSpec& spec) {
  refuse_arg(spec, "rounding", "shift", "with scheme=asymmetric,scale=fp32 of int2 to int8");
}

void refuse_spikes(const CodecSpec& spec) {
  refuse_arg(spec, "spikes", "1", "with scheme=asymmetric of integers");
}

std::size_t count_arg(const CodecSpec& spec, const std::string& key, std::size_t fallback,
                      std::size_t least, std::size_t most) {
  const auto it = spec.args.find(key);
  if (it == spec.args.end()) return fallback;
  const std::string& text = it->second;
  std::size_t x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc{} || end != text.data() + text.size() || x < least || x > most) {
    throw UsageError("codec " + spec.name,
                     key + "=" + std::to_string(least) + " to " + std::to_string(most),
                     "'" + text + "'");
  }
  return x;
}

std::size_t block_arg(const CodecSpec& spec, std::size_t fallback, std::size_t least) {
  return count_arg(spec, "block", fallback, least, kMaxBlock);
}

}  // namespace zeropp::quant
