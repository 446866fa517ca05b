#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "quant/block_layout.h"
#include "quant/codec.h"
#include "quant/rounding.h"

namespace zeropp::quant {

/// Integers of 1 to 8 bits in blocks, with a scale in a format of choice, and optionally the
/// block's minimum. Bytes as in block_layout.h; a block's metadata is its step s and, where
/// asymmetric, its minimum z. Those have the scale's format; z beside an E8M0 step is bf16.
///
/// With L = 2^(b-1) - 1 (symmetric, b > 1) or L = 2^b - 1 (asymmetric):
///   symmetric: A = max |x|, s = A / L rounded UP to the format, z = 0, codes q + 2^(b-1);
///   asymmetric: z = min x rounded DOWN to the format, s = (max x - z) / L rounded UP, codes q.
/// Rounding up means that no value clips, except where s or z lies beyond the format's largest
/// number (fp16: 65504), which is then taken. Quotients are double, rounded once.
///   v = (x * f - z * f) * fp32(1 / (s * f)), f = 2^100 if max(|min|, |max|) < 2^-60, 1/4 if it
///   is 2^126 or more, else 1. q = nearest-even(v), or stochastically floor(v) + (u < v -
///   floor(v)), u = RoundingNoise::uniform(index of the number in the span), clamped to -L .. L
///   or 0 .. L.
///   kShift (asymmetric, fp32, b > 1): s = (max x - min x) / (L - 1), then z = min x - u * s
///   rounded down, u = RoundingNoise::shift(block): nearest values err evenly whatever x is.
///   All x equal to z: s is the format's zero (E8M0: its smallest), q = 0.
///   A number is not finite: s is NaN (E8M0: 255), z and codes 0.
/// Decoding is z + q * s in fp32, clamped to +-FLT_MAX; computed from quarters, times 4, where
/// |z| + 2^b * |s| is 2^126 or more, since z and q * s may overflow alone. NaN is 0x7FC00000.
enum class MetaFormat : std::uint8_t { kFp32, kFp16, kBf16, kE8M0 };

struct IntPlaneFormat {
  int bits = 5;
  std::size_t block = 128;
  MetaFormat scale = MetaFormat::kFp32;
  bool asymmetric = false;
  Rounding rounding = Rounding::kNearest;

  BlockLayout layout() const;
  constexpr bool stochastic() const { return draws(rounding); }
  constexpr int lowest() const { return asymmetric ? 0 : -(1 << (bits - 1)); }
  constexpr int highest() const { return lowest() + (1 << bits) - 1; }
  constexpr float divisor() const { return static_cast<float>(highest()); }
};

CodecTraits int_plane_traits(const IntPlaneFormat& f);

/// The same with spikes reserved (asymmetric; block <= TiledCodec::kTile). A block's metadata
/// is followed by its smallest and largest number (the first of equals), each as a value in the
/// minimum's format, saturating, and its index in the block in 1, 2 or 4 bytes (block <= 2^8,
/// <= 2^16, more). Step and minimum are those of the rest, where each spike counts as another
/// number of it. A block with a number that is not finite has NaN for spikes.
CodecPtr make_int_spikes(std::string text, const IntPlaneFormat& format);

/// v = (x * pre - offset) * mul, q in low .. high; `zero`: every code is that of q = 0.
struct IntFactors {
  float pre = 1, offset = 0, mul = 0, low = 0, high = 0;
  bool zero = true;
};

struct IntRange {
  float min = 0, max = 0;
  bool finite = true;
};

/// From the smallest and largest number; `finite` if all are. Writes the metadata.
/// `shift` is the block's RoundingNoise::shift, or 0.
IntFactors write_int_meta(const IntPlaneFormat& f, IntRange range, double shift,
                          std::byte* meta);

/// A number is (min + q * step) * post.
struct IntMeta {
  float step, min, post;
};
IntMeta read_int_meta(const IntPlaneFormat& f, const std::byte* meta);

/// Bytes of the step, and of the minimum beside it.
std::size_t meta_size(MetaFormat m);
MetaFormat min_format(MetaFormat scale);

/// Kernels on 1 .. 4096 numbers of fp32, at any instruction set, with the bytes of reference::.
/// x[0] is number `first` of the span; `noise` is null if f.rounding is kNearest.
IntRange int_range(const float* x, std::size_t n);
/// From a block's start; the last block may be short.
void encode_int_blocks(const IntPlaneFormat& f, const float* x, std::size_t n,
                       std::uint64_t first, const RoundingNoise* noise, std::byte* meta,
                       std::byte* payload);
/// A piece of whole groups of a larger block.
void encode_int_run(const IntPlaneFormat& f, const IntFactors& by, const float* x,
                    std::size_t n, std::uint64_t first, const RoundingNoise* noise,
                    std::byte* payload);
/// Either of them again; `add`: out += value.
void decode_int_blocks(const IntPlaneFormat& f, const std::byte* meta, const std::byte* payload,
                       std::size_t n, bool add, float* out);

namespace reference {
IntRange int_range(const float* x, std::size_t n);
void encode_int_blocks(const IntPlaneFormat& f, const float* x, std::size_t n,
                       std::uint64_t first, const RoundingNoise* noise, std::byte* meta,
                       std::byte* payload);
void encode_int_run(const IntPlaneFormat& f, const IntFactors& by, const float* x,
                    std::size_t n, std::uint64_t first, const RoundingNoise* noise,
                    std::byte* payload);
void decode_int_blocks(const IntPlaneFormat& f, const std::byte* meta, const std::byte* payload,
                       std::size_t n, bool add, float* out);
}  // namespace reference

}  // namespace zeropp::quant
