// NVFP4 once per instruction set. See float_nvfp4.h for the bytes.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/float_nvfp4_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <algorithm>
#include <cfloat>
#include <cstring>

#include "quant/float_nvfp4.h"
#include "quant/minifloat-inl.h"
#include "quant/philox-inl.h"
#include "quant/planes-inl.h"
#include "quant/range-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

constexpr std::size_t kSixteen = kNvfp4Block;
constexpr std::size_t kVectors = kSixteen / kLanes;  ///< Of a block.

float Nvfp4FiniteMax(const float* x, std::size_t n) {
  float max = absmax(x, n);
  if (max <= FLT_MAX) return max;
  max = 0;
  for (std::size_t i = 0; i < n; i += kSixteen) {
    const float a = absmax(x + i, std::min(kSixteen, n - i));
    if (a <= FLT_MAX) max = std::max(max, a);
  }
  return max;
}

constexpr std::size_t kMany = kCodeTile / kSixteen;  ///< Blocks of a tile.

/// What the scales of blocks do to their numbers.
struct Scaled {
  alignas(64) float mul[kMany];
  alignas(64) double p[kMany];
  alignas(64) float error[kMany];
  alignas(64) std::uint32_t scale[kMany];
};

/// `up`: not below the number it stands for, unless it is zero.
HWY_INLINE void find_scales(double divisor, float t, bool up, VF a, VF pre, std::size_t at,
                            Scaled& s) {
  const VF exact = narrow(widen(a) / both(divisor * t));
  VU scale = encode_codes<E4M3>(exact);
  if (up) {
    const auto less = hn::RebindMask(DU(), hn::Lt(decode_codes<E4M3>(scale), exact));
    const auto top = hn::Eq(scale, set_bits(E4M3::kTop)), zero = hn::Eq(scale, set_bits(0));
    scale =
        hn::Add(scale, hn::IfThenElseZero(hn::AndNot(hn::Or(top, zero), less), set_bits(1)));
  }
  const Doubles p = widen(decode_codes<E4M3>(scale)) * both(t);
  hn::Store(scale, DU(), s.scale + at);
  hn::Store(p.low, DD(), s.p + at);
  hn::Store(p.high, DD(), s.p + at + kLanes / 2);
  hn::Store(narrow(both(1) / (p * widen(pre))), DF(), s.mul + at);
}

/// Magnitudes' codes and the squares of what they err; v >= 0.
struct Rounded {
  VU code;
  VF square;
};

HWY_INLINE Rounded round_magnitude(VF v) {
  const VF a = hn::Min(v, hn::Set(DF(), E2M1::kMax));
  const VU unit = unit_of<E2M1>(a);
  const VF lifted = hn::Add(a, hn::BitCast(DF(), unit));
  const VF d = hn::Sub(hn::Sub(lifted, hn::BitCast(DF(), unit)), v);
  return {hn::Add(hn::Sub(hn::BitCast(DU(), lifted), unit), binade_of<E2M1>(unit)),
          hn::Mul(d, d)};
}

/// E of kLanes blocks, from the squares of vector j of block b at [j][b].
HWY_INLINE VF errors(const VF (&squares)[kVectors][kLanes]) {
  const auto add = [](VF a, VF b) { return hn::Add(a, b); };
  VF sums[kVectors];
  for (std::size_t j = 0; j < kVectors; ++j) sums[j] = fold_each(squares[j], add);
  if constexpr (kVectors == 1) {
    return sums[0];
  } else if constexpr (kVectors == 2) {
    return add(sums[0], sums[1]);
  } else {
    return add(add(sums[0], sums[1]), add(sums[2], sums[3]));
  }
}

/// A tile of whole blocks; each step runs over all of them, since a block alone would wait for
/// every result.
template <bool k4Over6>
class TileEncoder {
 public:
  HWY_INLINE TileEncoder(float t, const float* x, std::size_t count, std::uint64_t begin,
                         const RoundingNoise* noise)
      : x_(x), count_(count), begin_(begin), noise_(noise) {
    const DF df;
    for (std::size_t first = 0; first < count; first += kLanes) {
      VI lanes[kLanes];
      for (std::size_t b = 0; b < kLanes; ++b) {
        const std::size_t at = std::min(first + b, count - 1) * kSixteen;
        lanes[b] = magnitude(hn::LoadU(df, x + at));
        for (std::size_t j = kLanes; j < kSixteen; j += kLanes) {
          lanes[b] = hn::Max(lanes[b], magnitude(hn::LoadU(df, x + at + j)));
        }
      }
      hn::Store(max_of_each(lanes), df, maxima_ + first);
    }
    for (std::size_t first = 0; first < count; first += kLanes) {
      const VF a = hn::Load(df, maxima_ + first);
      const auto tiny = hn::Lt(a, hn::Set(df, 0x1p-100F));
      const VF pre = hn::IfThenElse(tiny, hn::Set(df, 0x1p100F), hn::Set(df, 1.0F));
      hn::Store(pre, df, pre_ + first);
      tiny_ = tiny_ || !hn::AllFalse(df, tiny);
      find_scales(6, t, noise != nullptr, a, pre, first, six_);
      if constexpr (k4Over6) find_scales(4, t, false, a, pre, first, four_);
    }
  }

  /// Writes the scales, and the payloads but for a short last block's: its codes go to `last`.
  HWY_INLINE void encode(bool is_short, std::byte* scales, std::byte* payload,
                         std::uint8_t* last) {
    if (!k4Over6 && noise_ != nullptr) {
      quantize_stochastic();
    } else {
      tiny_ ? quantize<true>() : quantize<false>();
    }
    for (std::size_t first = 0; first < count_; first += kLanes) choose(first);
    all_kept_ ? pack<true>(is_short, scales, payload, last)
              : pack<false>(is_short, scales, payload, last);
  }

 private:
  template <bool kAllKept>
  HWY_INLINE void pack(bool is_short, std::byte* scales, std::byte* payload,
                       std::uint8_t* last) const {
    for (std::size_t b = 0; b < count_; ++b, payload += kSixteen / 2) {
      scales[b] = static_cast<std::byte>(scale_[b]);
      std::uint64_t half[2];
      std::memcpy(half, codes_ + b * kSixteen, sizeof half);
      for (std::uint64_t& codes : half) {
        if constexpr (k4Over6) codes = chosen(codes, shift_[b]);
        if (!kAllKept && keep_[b] == 0) codes = 0;
      }
      if (HWY_UNLIKELY(is_short && b + 1 == count_)) {
        std::memcpy(last, half, sizeof half);
      } else {
        half[0] |= half[1] << 4;
        std::memcpy(payload, half, sizeof half[0]);
      }
    }
  }

  /// Bytes hold a code for 6; and under 4over6 the one for 4, but for its sign, in bits 4 to 6.
  static HWY_INLINE std::uint64_t chosen(std::uint64_t codes, unsigned shift) {
    constexpr std::uint64_t kOnes = 0x0101010101010101;
    return ((codes >> shift) & (7 * kOnes)) | (codes & (8 * kOnes));
  }

  /// Scales of kLanes blocks: which candidate, and whether there are codes at all.
  HWY_INLINE void choose(std::size_t first) {
    const DU du;
    const VU none = hn::Zero(du);
    const VF a = hn::Load(DF(), maxima_ + first);
    const auto finite = hn::RebindMask(du, hn::Le(a, hn::Set(DF(), FLT_MAX)));
    const auto zero = hn::RebindMask(du, hn::Eq(a, hn::Zero(DF())));
    VU scale = hn::Load(du, six_.scale + first);
    if constexpr (k4Over6) {
      const VU four = hn::Load(du, four_.scale + first);
      // All ones where 4's error is less; a scale of zero loses.
      VU takes = hn::IfThenElse(hn::Eq(scale, none), hn::Set(du, ~0U), less_error(first));
      takes = hn::IfThenZeroElse(hn::Eq(four, none), takes);
      scale = hn::IfVecThenElse(takes, four, scale);
      hn::Store(hn::And(takes, set_bits(4)), du, shift_ + first);
    }
    const VU codes = hn::IfThenElseZero(finite, hn::IfThenZeroElse(zero, scale));
    const auto kept = hn::Ne(codes, none);
    all_kept_ = all_kept_ && hn::AllTrue(du, kept);
    hn::Store(hn::VecFromMask(du, kept), du, keep_ + first);
    hn::Store(hn::IfThenElse(finite, codes, set_bits(0x7F)), du, scale_ + first);
  }

  HWY_INLINE Doubles error_of(const Scaled& s, std::size_t first) const {
    const Doubles p{hn::Load(DD(), s.p + first), hn::Load(DD(), s.p + first + kLanes / 2)};
    return widen(hn::Load(DF(), s.error + first)) * (p * p);
  }
  HWY_INLINE VU less_error(std::size_t first) const {
    const Doubles e4 = error_of(four_, first), e6 = error_of(six_, first);
    const VD one = hn::Set(DD(), 1), none = hn::Zero(DD());
    const VF less = narrow({hn::IfThenElse(hn::Lt(e4.low, e6.low), one, none),
                            hn::IfThenElse(hn::Lt(e4.high, e6.high), one, none)});
    return hn::VecFromMask(DU(), hn::RebindMask(DU(), hn::Gt(less, hn::Zero(DF()))));
  }

  HWY_INLINE void quantize_stochastic() {
    constexpr std::size_t kSegment = 512;
    alignas(64) std::uint32_t buffer[kNoiseSize<kSegment>];
    for (std::size_t at = 0; at < count_ * kSixteen; at += kSegment) {
      const std::size_t end = std::min(at + kSegment, count_ * kSixteen);
      const std::uint32_t* words = fill_noise(*noise_, begin_ + at, end - at, buffer);
      for (std::size_t i = at; i < end; i += kSixteen) {
        const VF pre = hn::Set(DF(), pre_[i / kSixteen]);
        const VF mul = hn::Set(DF(), six_.mul[i / kSixteen]);
        code_run(x_ + i, kSixteen, codes_ + i, [&](VF v, std::size_t j) {
          return encode_codes<E2M1>(hn::Mul(hn::Mul(v, pre), mul),
                                    uniform(words + (i - at) + j));
        });
      }
    }
  }

  template <bool kTiny>
  HWY_INLINE void quantize() {
    const DF df;
    const auto scaled = [&](VF v, const Scaled& s, std::size_t b) {
      if constexpr (kTiny) v = hn::Mul(v, hn::Set(df, pre_[b]));
      return hn::Mul(v, hn::Set(df, s.mul[b]));
    };
    if constexpr (!k4Over6) {
      for (std::size_t i = 0; i < count_ * kSixteen; i += 2 * kLanes) {
        const std::size_t next = i + kLanes;  // The last may lie beyond the numbers.
        const VF second = next < count_ * kSixteen ? hn::LoadU(df, x_ + next) : hn::Zero(df);
        store_bytes(encode_codes<E2M1>(scaled(hn::LoadU(df, x_ + i), six_, i / kSixteen)),
                    encode_codes<E2M1>(scaled(second, six_, next / kSixteen % kMany)),
                    reinterpret_cast<std::byte*>(codes_ + i));
      }
    } else {
      VF squares6[kVectors][kLanes], squares4[kVectors][kLanes];
      for (std::size_t first = 0; first < count_; first += kLanes) {
        for (std::size_t b = 0; b < kLanes; ++b) {
          for (std::size_t j = 0; j < kVectors; ++j) {
            const std::size_t block = std::min(first + b, count_ - 1);
            const std::size_t at = block * kSixteen + j * kLanes;
            const VF v = hn::LoadU(df, x_ + at), a = hn::Abs(v);
            const Rounded six = round_magnitude(scaled(a, six_, block));
            const Rounded four = round_magnitude(scaled(a, four_, block));
            squares6[j][b] = six.square;
            squares4[j][b] = four.square;
            const VU sign = hn::And(hn::ShiftRight<28>(hn::BitCast(DU(), v)), set_bits(8));
            const VU both_codes = hn::Or(six.code, hn::ShiftLeft<4>(four.code));
            store_bytes(hn::Or(both_codes, sign), reinterpret_cast<std::byte*>(codes_ + at));
          }
        }
        hn::Store(errors(squares6), df, six_.error + first);
        hn::Store(errors(squares4), df, four_.error + first);
      }
    }
  }

  const float* x_;
  std::size_t count_;
  std::uint64_t begin_;  ///< x_[0]'s number in the span.
  const RoundingNoise* noise_;
  bool tiny_ = false, all_kept_ = true;
  alignas(64) float maxima_[kMany];
  alignas(64) float pre_[kMany];
  alignas(64) std::uint32_t scale_[kMany];
  alignas(64) std::uint32_t keep_[kMany];   ///< 0 where every code is +0.
  alignas(64) std::uint32_t shift_[kMany];  ///< 4 where the candidate of 4 is taken.
  Scaled six_, four_;
  alignas(64) std::uint8_t codes_[kCodeRoom];
};

template <bool k4Over6>
HWY_INLINE void encode_blocks(float t, const float* x, std::size_t n, std::uint64_t first,
                              const RoundingNoise* noise, std::byte* scales,
                              std::byte* payload) {
  if (n == 0) return;
  const std::size_t count = (n + kSixteen - 1) / kSixteen, rest = n % kSixteen;
  alignas(16) std::uint8_t last[kSixteen + 8] = {};
  if (rest == 0) {
    TileEncoder<k4Over6>(t, x, count, first, noise).encode(false, scales, payload, last);
    return;
  }
  alignas(64) float padded[kCodeTile] = {};
  std::memcpy(padded, x, n * sizeof(float));
  TileEncoder<k4Over6>(t, padded, count, first, noise).encode(true, scales, payload, last);
  std::memset(last + rest, 0, kSixteen - rest);  // Padding may have a sign.
  bit_planes::pack_group<4>(last, rest, payload + (count - 1) * kSixteen / 2);
}

void EncodeNvfp4Blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                       std::uint64_t first, const RoundingNoise* noise, std::byte* scales,
                       std::byte* payload) {
  rule == Nvfp4Rule::k4Over6 ? encode_blocks<true>(t, x, n, first, noise, scales, payload)
                             : encode_blocks<false>(t, x, n, first, noise, scales, payload);
}

/// The 16 values of a block's codes, times p.
class BlockValues {
 public:
  explicit HWY_INLINE BlockValues(double p) : p_(p) {
    if constexpr (kLanes == 16) {
      // Eight magnitudes, and the same below zero.
      alignas(64) static constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      const auto m =
          hn::DemoteTo(DHalf(), hn::Mul(hn::LoadU(DD(), kMagnitudes), hn::Set(DD(), p)));
      table_ = canonical(hn::Combine(DF(), hn::Neg(m), m));
    }
  }
  HWY_INLINE VF operator()(VU code) const {
    if constexpr (kLanes == 16) {
      return hn::TableLookupLanes(table_, hn::IndicesFromVec(DF(), code));
    } else {
      return canonical(narrow(widen(decode_codes<E2M1>(code)) * both(p_)));
    }
  }

 private:
  double p_;
  VF table_;
};

template <bool kAdd>
HWY_INLINE void decode_blocks(float t, const std::byte* scales, const std::byte* payload,
                              std::size_t n, float* out) {
  alignas(64) std::uint8_t codes[kCodeRoom];
  unpack_codes<4>(payload, kSixteen, n, codes);
  alignas(64) std::uint8_t bytes[kLanes] = {};
  alignas(64) double p[kLanes];
  for (std::size_t first = 0; first < n; first += kLanes * kSixteen) {
    const std::size_t m = std::min(kLanes * kSixteen, n - first);
    std::memcpy(bytes, scales + first / kSixteen, (m + kSixteen - 1) / kSixteen);
    const Doubles scale = widen(decode_codes<E4M3>(load_bytes(bytes))) * both(t);
    hn::Store(scale.low, DD(), p);
    hn::Store(scale.high, DD(), p + kLanes / 2);
    for (std::size_t i = 0; i < m; i += kSixteen) {
      value_run<kAdd>(codes + first + i, std::min(kSixteen, m - i), out + first + i,
                      BlockValues(p[i / kSixteen]));
    }
  }
}

void DecodeNvfp4Blocks(float t, const std::byte* scales, const std::byte* payload,
                       std::size_t n, bool add, float* out) {
  add ? decode_blocks<true>(t, scales, payload, n, out)
      : decode_blocks<false>(t, scales, payload, n, out);
}

#else

float Nvfp4FiniteMax(const float* x, std::size_t n) {
  return reference::nvfp4_finite_max(x, n);
}
void EncodeNvfp4Blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                       std::uint64_t first, const RoundingNoise* noise, std::byte* scales,
                       std::byte* payload) {
  reference::encode_nvfp4_blocks(rule, t, x, n, first, noise, scales, payload);
}
void DecodeNvfp4Blocks(float t, const std::byte* scales, const std::byte* payload,
                       std::size_t n, bool add, float* out) {
  reference::decode_nvfp4_blocks(t, scales, payload, n, add, out);
}

#endif
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zeropp::quant {

HWY_EXPORT(Nvfp4FiniteMax);
HWY_EXPORT(EncodeNvfp4Blocks);
HWY_EXPORT(DecodeNvfp4Blocks);

float nvfp4_finite_max(const float* x, std::size_t n) {
  if (scalar_forced()) return reference::nvfp4_finite_max(x, n);
  return HWY_DYNAMIC_DISPATCH(Nvfp4FiniteMax)(x, n);
}

void encode_nvfp4_blocks(Nvfp4Rule rule, float t, const float* x, std::size_t n,
                         std::uint64_t first, const RoundingNoise* noise, std::byte* scales,
                         std::byte* payload) {
  if (scalar_forced())
    return reference::encode_nvfp4_blocks(rule, t, x, n, first, noise, scales, payload);
  HWY_DYNAMIC_DISPATCH(EncodeNvfp4Blocks)(rule, t, x, n, first, noise, scales, payload);
}

void decode_nvfp4_blocks(float t, const std::byte* scales, const std::byte* payload,
                         std::size_t n, bool add, float* out) {
  if (scalar_forced()) {
    return reference::decode_nvfp4_blocks(t, scales, payload, n, add, out);
  }
  HWY_DYNAMIC_DISPATCH(DecodeNvfp4Blocks)(t, scales, payload, n, add, out);
}

}  // namespace zeropp::quant
#endif
