// Errors of codecs: what CodecError says, by definition.

#include "experiments/codecs/measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "experiments/codecs/families.h"
#include "quant/contract/calls.h"
#include "quant/convert.h"
#include "quant/metrics.h"

namespace zeropp::experiments {
namespace {

using quant::Codec;
using quant::CodecContext;
using quant::Dtype;
using quant::MemoryKind;
using quant::Tensor;
using quant::contract::call_decode;
using quant::contract::call_decode_sum;
using quant::contract::call_encode;
using quant::contract::call_reduce_encode;

Tensor fp32(std::size_t n) { return {nullptr, MemoryKind::kHost, Dtype::kF32, n}; }

Tensor in_fp32(const Tensor& x) {
  Tensor y = fp32(x.size());
  quant::convert(x.view(), y.view());
  return y;
}

/// What rounding k of rank r is called: keys of random numbers.
CodecContext context(std::size_t k, std::uint32_t rank, std::uint32_t level = 0) {
  return {.seed = 1, .step = k, .sender = rank, .level = level};
}

/// The first rounding of a rank that is one of `size` whose spans are summed, as in a hop.
CodecContext hop_context(std::size_t rank, std::size_t index, std::size_t size,
                         std::uint32_t level = 0) {
  CodecContext ctx = context(0, static_cast<std::uint32_t>(rank), level);
  ctx.group_size = static_cast<std::uint32_t>(size);
  ctx.group_index = static_cast<std::uint32_t>(index);
  return ctx;
}

std::vector<std::byte> encoded(const Codec& codec, quant::ConstView x,
                               const CodecContext& ctx) {
  std::vector<std::byte> wire(codec.max_wire_size(x.n));
  wire.resize(call_encode(codec, x, ctx, wire));
  return wire;
}

double normalised(quant::ConstView x, quant::ConstView y) {
  quant::ErrorSums sums;
  sums.add(x, y);
  return sums.metrics().nmse;
}

// --- One span ------------------------------------------------------------------------------

/// Errors e_k = x^_k - x of the keyed roundings k of one span.
class Roundings {
 public:
  Roundings(const Codec& codec, const Tensor& x)
      : codec_(codec), coded_(x), x_(in_fp32(x)), y_(fp32(x.size())) {}

  /// Encodes and decodes rounding k; returns the bytes on the wire.
  std::size_t round(std::size_t k) {
    const auto wire = encoded(codec_, coded_.view(), context(k, 0));
    call_decode(codec_, wire, context(k, 0), y_.view());
    return wire.size();
  }
  /// use(element, error) of the last rounding.
  template <class Use>
  void errors(const Use& use) const {
    for (std::size_t i = 0; i < x_.size(); ++i) use(i, double{y_.f32()[i]} - x_.f32()[i]);
  }
  quant::ErrorMetrics metrics() const {
    quant::ErrorSums sums;
    sums.add(x_.view(), y_.view());
    return sums.metrics();
  }
  double squares() const { return quant::sum_squares(x_.view()); }
  std::size_t n() const { return x_.size(); }

 private:
  const Codec& codec_;
  const Tensor& coded_;
  Tensor x_, y_;
};

/// Two-sided 95 % quantile of Student's t (Cornish-Fisher in 1 / degrees; within 1 % from 4
/// on).
double t_quantile(double degrees) {
  const double z = 1.959964, v = degrees;
  const double a = (std::pow(z, 3) + z) / 4;
  const double b = (5 * std::pow(z, 5) + 16 * std::pow(z, 3) + 3 * z) / 96;
  const double c =
      (3 * std::pow(z, 7) + 19 * std::pow(z, 5) + 17 * std::pow(z, 3) - 15 * z) / 384;
  return z + a / v + b / (v * v) + c / (v * v * v);
}

double root(double x) { return std::sqrt(std::max(x, 0.0)); }

/// The mean of <e_j, e_k> over pairs j != k is an unbiased estimate of ||E[e]||^2. It and its
/// leave-one-out values need ||S||^2, <S, e_k> and ||e_k||^2, where S is the sum of all e_k:
/// every rounding is drawn twice instead of kept.
void estimate_bias(Roundings& r, int draws, CodecError& result) {
  const auto count = static_cast<std::size_t>(draws);
  std::vector<double> sum(r.n(), 0.0), own(count, 0.0), with_sum(count, 0.0);
  for (std::size_t k = 0; k < count; ++k) {
    r.round(k);
    r.errors([&](std::size_t i, double e) {
      sum[i] += e;
      own[k] += e * e;
    });
  }
  double sum_squared = 0, own_total = 0;
  for (const double s : sum) sum_squared += s * s;
  for (const double q : own) own_total += q;
  for (std::size_t k = 0; k < count; ++k) {
    r.round(k);
    r.errors([&](std::size_t i, double e) { with_sum[k] += sum[i] * e; });
  }
  const auto m = static_cast<double>(draws);
  const double estimate = (sum_squared - own_total) / (m * (m - 1));
  double variance = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const double without =
        (sum_squared - 2 * with_sum[k] + own[k] - (own_total - own[k])) / ((m - 1) * (m - 2));
    variance += (without - estimate) * (without - estimate);
  }
  const double half = t_quantile(m - 1) * std::sqrt(variance * (m - 1) / m);
  const double xx = r.squares();
  if (xx == 0) return;
  result.bias = root(estimate / xx);
  result.bias_low = root((estimate - half) / xx);
  result.bias_high = root((estimate + half) / xx);
}

// --- Several ranks -------------------------------------------------------------------------

using Wires = std::vector<std::vector<std::byte>>;

std::vector<std::span<const std::byte>> spans(const Wires& wires) {
  return {wires.begin(), wires.end()};
}

Wires encode_all(const Codec& codec, const CodecData& data, std::size_t first,
                 std::size_t count) {
  Wires wires;
  for (std::size_t r = first; r < first + count; ++r) {
    wires.push_back(encoded(codec, data.by_rank[r].view(), hop_context(r, r - first, count)));
  }
  return wires;
}

Tensor exact_mean(const CodecData& data) {
  std::vector<double> sum(data.n(), 0.0);
  Tensor x = fp32(data.n());
  for (const Tensor& of_rank : data.by_rank) {
    quant::convert(of_rank.view(), x.view());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x.f32()[i];
  }
  const auto ranks = static_cast<double>(data.by_rank.size());
  for (std::size_t i = 0; i < sum.size(); ++i) x.f32()[i] = static_cast<float>(sum[i] / ranks);
  return x;
}

Tensor one_hop(const Codec& codec, const CodecData& data) {
  const Wires wires = encode_all(codec, data, 0, data.by_rank.size());
  Tensor mean = fp32(data.n());
  call_decode_sum(codec, spans(wires), static_cast<float>(wires.size()), context(0, 0),
                  mean.view());
  return mean;
}

Tensor two_hops(const Codec& codec, const CodecData& data, std::size_t group) {
  Wires outer;
  for (std::size_t first = 0; first < data.by_rank.size(); first += group) {
    const Wires inner = encode_all(codec, data, first, group);
    auto& wire = outer.emplace_back(codec.max_wire_size(data.n()));
    wire.resize(call_reduce_encode(
        codec, codec, spans(inner), data.n(), 1,
        hop_context(first, first / group, data.by_rank.size() / group, 1), wire));
  }
  Tensor mean = fp32(data.n());
  call_decode_sum(codec, spans(outer), static_cast<float>(data.by_rank.size()),
                  context(0, 0, 1), mean.view());
  return mean;
}

Tensor ring(const Codec& codec, const CodecData& data) {
  const auto ranks = static_cast<float>(data.by_rank.size());
  Tensor sum = in_fp32(data.by_rank[0]), decoded = fp32(data.n());
  quant::divide(sum.view(), ranks, sum.view());  // Partial means travel: no sum overflows.
  for (std::size_t r = 1; r < data.by_rank.size(); ++r) {
    const auto wire = encoded(codec, sum.view(), context(0, static_cast<std::uint32_t>(r - 1)));
    quant::divide(data.by_rank[r].view(), ranks, sum.view());
    call_decode(codec, wire, context(0, static_cast<std::uint32_t>(r)), decoded.view());
    quant::accumulate(sum.view(), decoded.view());
  }
  return sum;
}

}  // namespace

CodecData family_codec_data(const std::string& family, Dtype dtype, std::size_t n, int ranks) {
  CodecData data{.name = family, .by_rank = {}};
  for (int r = 0; r < ranks; ++r) {
    data.by_rank.push_back(family_data(family, dtype, n, static_cast<std::uint32_t>(r)));
  }
  return data;
}

CodecData tensor_codec_data(std::string name, const Tensor& tensor, Dtype dtype, int ranks) {
  CodecData data{.name = std::move(name), .by_rank = {}};
  const std::size_t n = tensor.size();
  for (int r = 0; r < ranks; ++r) {
    const std::size_t at = n / static_cast<std::size_t>(ranks) * static_cast<std::size_t>(r);
    Tensor x(nullptr, MemoryKind::kHost, dtype, n);
    quant::convert(tensor.view().slice(at, n - at), x.view().slice(0, n - at));
    quant::convert(tensor.view().slice(0, at), x.view().slice(n - at, at));
    data.by_rank.push_back(std::move(x));
  }
  return data;
}

CodecError measure_error(const Codec& codec, const CodecData& data, int group, int roundings) {
  CodecError result;
  result.roundings = codec.traits().deterministic ? 1 : roundings;
  Roundings r(codec, data.by_rank[0]);
  double bytes = 0, nmse = 0;
  for (int k = 0; k < result.roundings; ++k) {
    bytes += static_cast<double>(r.round(static_cast<std::size_t>(k)));
    nmse += r.metrics().nmse;
  }
  const quant::ErrorMetrics last = r.metrics();
  result.bits_per_element = 8 * bytes / result.roundings / static_cast<double>(data.n());
  result.nmse = nmse / result.roundings;
  result.sqnr_db = -10 * std::log10(result.nmse);
  result.cosine = last.cosine;
  result.max_error = last.max_abs;
  if (result.roundings == 1) {
    result.bias = result.bias_low = result.bias_high = std::sqrt(result.nmse);
  } else {
    estimate_bias(r, result.roundings, result);
  }
  const Tensor mean = exact_mean(data);
  const auto against_mean = [&](const Tensor& y) { return normalised(mean.view(), y.view()); };
  result.vnmse_one_hop = against_mean(one_hop(codec, data));
  result.vnmse_two_hop = against_mean(two_hops(codec, data, static_cast<std::size_t>(group)));
  result.vnmse_ring = against_mean(ring(codec, data));
  return result;
}

}  // namespace zeropp::experiments
