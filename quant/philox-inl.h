// Philox words for a run of elements, a vector of counters at a time. Included once per
// instruction set.

#if defined(ZEROPP_QUANT_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZEROPP_QUANT_PHILOX_INL_H_
#undef ZEROPP_QUANT_PHILOX_INL_H_
#else
#define ZEROPP_QUANT_PHILOX_INL_H_
#endif

#include "quant/rounding.h"
#include "quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zeropp::quant::HWY_NAMESPACE {
#if ZEROPP_SIMD

/// Room that fill_noise needs for `count` elements: whole vectors of counters at both ends, and
/// a whole group of 32 may be read past them.
template <std::size_t count>
constexpr std::size_t kNoiseSize = count + 8 * kLanes + 32;

struct WidePair {
  VU high, low;
};

HWY_INLINE WidePair mul_wide(VU a, VU b) {
  const hn::RepartitionToWide<DU> dw;
  const DU du;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(dw, a))), b);
  return {hn::OddEven(hn::BitCast(du, odd), hn::BitCast(du, hn::ShiftRight<32>(even))),
          hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(odd)), hn::BitCast(du, even))};
}

/// Writes the words of elements first .. first + count (and some around them) to `words`;
/// returns where element `first` is.
HWY_INLINE const std::uint32_t* fill_noise(const Philox& noise, std::uint64_t first,
                                           std::size_t count, std::uint32_t* words) {
  const DU du;
  const auto& base = noise.counter_base();
  const std::uint64_t begin = first / 4, end = (first + count + 3) / 4;
  const VU mul0 = hn::Set(du, 0xD2511F53), mul1 = hn::Set(du, 0xCD9E8D57);
  for (std::uint64_t block = begin; block < end; block += kLanes) {
    const VU low = hn::Set(du, static_cast<std::uint32_t>(block));
    VU c0 = hn::Add(low, hn::Iota(du, 0));
    const auto high = static_cast<std::uint32_t>(block >> 32) & 15;
    const VU carry = hn::VecFromMask(du, hn::Lt(c0, low));  // All ones: minus one.
    // The block's upper 4 bits are the counter's; a carry out of them cannot reach an element.
    VU c1 = hn::Or(hn::And(hn::Sub(hn::Set(du, high), carry), hn::Set(du, 15)),
                   hn::Set(du, base[1]));
    VU c2 = hn::Set(du, base[2]), c3 = hn::Set(du, base[3]);
    std::uint32_t k0 = noise.key()[0], k1 = noise.key()[1];
    for (int round = 0; round < 10; ++round) {
      const WidePair p0 = mul_wide(c0, mul0), p1 = mul_wide(c2, mul1);
      c0 = hn::Xor(hn::Xor(p1.high, c1), hn::Set(du, k0));
      c1 = p1.low;
      c2 = hn::Xor(hn::Xor(p0.high, c3), hn::Set(du, k1));
      c3 = p0.low;
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    hn::StoreInterleaved4(c0, c1, c2, c3, du, words + (block - begin) * 4);
  }
  return words + first % 4;
}

/// The same for rounding, correlated or not.
HWY_INLINE const std::uint32_t* fill_noise(const RoundingNoise& noise, std::uint64_t first,
                                           std::size_t count, std::uint32_t* words) {
  const std::uint32_t* own = fill_noise(noise.own(), first, count, words);
  if (HWY_UNLIKELY(noise.correlated())) noise.correlate(first, count, words + (own - words));
  return own;
}

/// Philox::uniform of kLanes words.
HWY_INLINE VF uniform(const std::uint32_t* words) {
  const VU word = hn::ShiftRight<8>(hn::LoadU(DU(), words));
  return hn::Mul(hn::ConvertTo(DF(), hn::BitCast(DI(), word)), hn::Set(DF(), 0x1p-24F));
}

#endif  // ZEROPP_SIMD
}  // namespace zeropp::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ZEROPP_QUANT_PHILOX_INL_H_
