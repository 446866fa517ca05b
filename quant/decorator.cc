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

double number_arg(const CodecSpec& spec, const std::string& key, double fallback, double least,
                  double most) {
  const auto it = spec.args.find(key);
  if (it == spec.args.end()) return fallback;
  const std::string& text = it->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || !(value >= least && value <= most)) {
    throw UsageError("codec " + spec.name, fmt::format("{}={} to {}", key, least, most),
                     "'" + text + "'");
  }
  return value;
}

std::string number_text(double x) { return fmt::format("{}", x); }

}  // namespace zeropp::quant
