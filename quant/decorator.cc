#include "quant/decorator.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/error.h"

namespace zeropp::quant {

DecoratorCodec::DecoratorCodec(const std::string& head, CodecPtr inner)
    : spec_(head + "|" + inner->spec()), inner_(std::move(inner)) {}

WireBytes DecoratorCodec::wire_bytes(std::size_t n) const {
  WireBytes w = inner_->wire_bytes(n);
  w.payload += w.exact;
  w.exact = 0;
  w.scale += header_size(n);
  return w;
}

std::uint64_t DecoratorCodec::header_bytes(std::size_t) const { return 0; }

CodecTraits DecoratorCodec::inner_traits() const {
  const CodecTraits t = inner_->traits();
  return {.fixed_rate = t.fixed_rate,
          .unbiased = t.unbiased,
          .deterministic = t.deterministic,
          .stateful = t.stateful,
          .receiver_state = t.receiver_state,
          .sums_transformed = t.sums_transformed,
          .difference = t.difference,
          .block = t.block,
          .nan = t.nan,
          .max_error = t.max_error,
          .floor = t.floor};
}

void DecoratorCodec::check_wire(std::string_view what, std::size_t found,
                                std::size_t needed) const {
  require_wire_size(spec_, what, found, needed);
}

void refuse_state(const std::string& decorator, const Codec& inner) {
  if (!inner.traits().stateful) return;
  throw UsageError("codec " + decorator, "a codec without state behind it",
                   "'" + inner.spec() + "'");
}

namespace {

[[noreturn]] void refuse(const CodecSpec& spec, const std::string& expected,
                         const std::string& found) {
  throw UsageError("codec " + spec.name, expected, "'" + found + "'");
}

template <class T>
T parse_arg(const CodecSpec& spec, const std::string& key, T fallback, T least, T most) {
  const auto it = spec.args.find(key);
  if (it == spec.args.end()) return fallback;
  const std::string& text = it->second;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || !(value >= least && value <= most)) {
    refuse(spec, fmt::format("{}={} to {}", key, least, most), text);
  }
  return value;
}

}  // namespace

double number_arg(const CodecSpec& spec, const std::string& key, double fallback, double least,
                  double most) {
  return parse_arg<double>(spec, key, fallback, least, most);
}

std::uint64_t count_arg(const CodecSpec& spec, const std::string& key, std::uint64_t fallback,
                        std::uint64_t least, std::uint64_t most) {
  return parse_arg<std::uint64_t>(spec, key, fallback, least, most);
}

std::string number_text(double x) { return fmt::format("{}", x); }

}  // namespace zeropp::quant
