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

std::size_t block_arg(const CodecSpec& spec, std::size_t fallback, std::size_t least) {
  const auto it = spec.args.find("block");
  if (it == spec.args.end()) return fallback;
  const std::string& text = it->second;
  std::size_t block = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), block);
  if (error != std::errc{} || end != text.data() + text.size() || block < least ||
      block > kMaxBlock) {
    throw UsageError("codec " + spec.name,
                     "block=" + std::to_string(least) + " to " + std::to_string(kMaxBlock),
                     "'" + text + "'");
  }
  return block;
}

}  // namespace zeropp::quant
