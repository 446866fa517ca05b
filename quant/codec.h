#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "quant/dtype.h"

namespace zeropp::quant {

/// What a value is for; the traffic ledger books by it.
enum class Role : std::uint8_t { kWeight, kGradient, kOptimizer, kScalar, kControl };
std::string_view name(Role role);

/// Bytes of one encoded span by what they carry. An exact codec (identity, fp32, bf16, fp16)
/// books everything under `exact`.
struct WireBytes {
  std::uint64_t payload = 0;
  std::uint64_t scale = 0;    ///< Scales, zero points, indices, sizes: metadata.
  std::uint64_t padding = 0;  ///< Bytes sent only because of block or nibble rounding.
  std::uint64_t exact = 0;

  constexpr std::uint64_t total() const { return payload + scale + padding + exact; }
  constexpr WireBytes& operator+=(const WireBytes& o) {
    payload += o.payload;
    scale += o.scale;
    padding += o.padding;
    exact += o.exact;
    return *this;
  }
  friend constexpr bool operator==(const WireBytes&, const WireBytes&) = default;
};

class CodecState;  ///< Residuals of stateful decorators, one object a rank (codec_state.h).

/// Identity of the span being encoded: keys every random number and every residual.
struct CodecContext {
  std::uint64_t seed = 0;
  Role role = Role::kGradient;
  std::uint32_t tensor = 0;  ///< Canonical index of the tensor.
  std::uint64_t step = 0;    ///< Step (gradients) or version (weights).
  std::uint32_t micro = 0;   ///< Micro-step.
  std::uint32_t sender = 0;  ///< World rank that encodes.
  std::uint32_t part = 0;    ///< World chunk within the tensor.
  std::uint32_t level = 0;   ///< Level (hop) of the hierarchy, 0 = innermost.
  /// The hop starts inside its level: a group smaller than the level's makes two hops of it.
  bool second_hop = false;
  std::uint32_t group_size = 1;   ///< Senders whose spans of this hop are summed.
  std::uint32_t group_index = 0;  ///< The sender's place among them.
  CodecState* state = nullptr;
  std::uint64_t* underflow = nullptr;  ///< Counts non-zero values that a cast sent as zero.
};

enum class NanPolicy : std::uint8_t {
  kPoisonBlock,  ///< Any non-finite input makes its whole decoded block NaN.
  kPreserve,     ///< Element by element (casts).
};

/// As CodecTraits::block: all numbers of a span share metadata.
inline constexpr std::size_t kWholeSpan = std::size_t{1} << 62;

struct CodecTraits {
  bool fixed_rate = true;       ///< wire_bytes(n) is what is sent; else an upper bound.
  bool exact = false;           ///< A plain cast: its bytes are booked as `exact`.
  bool unbiased = false;        ///< E[decode] = x for finite x (stochastic rounding).
  bool deterministic = true;    ///< Bytes depend on the values (and state) alone.
  bool stateful = false;        ///< encode reads and writes CodecContext::state.
  bool receiver_state = false;  ///< Decoding does too: only the calls with a context work.
  /// decode_sum adds before a linear transform is undone, and reduce_encode between codecs with
  /// one transform never undoes it: equal to sums of decode up to fp32 roundings alone (2^-18
  /// of the sum of the sources' absmax), with fewer transforms.
  bool sums_transformed = false;
  /// What is encoded is the difference to a reference that the caller holds and adds to
  /// (`delta`): the codec itself only marks that, and codes the numbers it is given.
  bool difference = false;
  std::size_t block = 1;  ///< Elements that share metadata.
  NanPolicy nan = NanPolicy::kPoisonBlock;
  /// |x - decode(encode(x))| <= max_error * absmax(block), finite x, one hop, up to the
  /// smallest subnormal (of the wire dtype, for casts) and up to `floor`.
  /// Of stateful codecs: with a fresh state.
  double max_error = 0;
  double floor = 0;  ///< Absolute error that the smallest scale of the wire format may cause.
  /// ||x - y||^2 <= (1 - contraction) ||x||^2 in every block of finite x, y what is decoded, up
  /// to the absolute errors above: what error feedback needs. 0: not promised.
  double contraction = 0;
  /// decode into the dtype that travels gives the same bits, NaN payloads too.
  bool lossless = false;
};

/// A map from a contiguous span of numbers to self-contained wire bytes and back. No
/// communication inside; const and safe to use from any number of ranks at once.
///
/// Promises, checked by quant/contract: over the whole registry in the tests, over a plug-in by
/// `zeropp codecs --check`:
///  - wire_bytes(n) depends on n alone; n = 0 and tails work.
///  - encode writes every byte it reports: no stale memory on the link.
///  - every instruction set and device gives the bytes of the scalar reference.
///  - decode, decode_add, decode_sum and reduce_encode agree bit for bit with each other (but
///    for CodecTraits::sums_transformed).
///  - decode stays inside its spans whatever the bytes are.
class Codec {
 public:
  virtual ~Codec() = default;

  /// Canonical spec with every parameter that is not its default, e.g. "int8:block=2048".
  virtual const std::string& spec() const = 0;
  virtual CodecTraits traits() const = 0;
  virtual WireBytes wire_bytes(std::size_t n) const = 0;
  std::size_t max_wire_size(std::size_t n) const {
    return static_cast<std::size_t>(wire_bytes(n).total());
  }

  /// Returns the bytes written (== wire_bytes(n).total() for fixed rate).
  /// wire.size() must be at least max_wire_size(x.n).
  virtual std::size_t encode(ConstView x, const CodecContext& ctx,
                             std::span<std::byte> wire) const = 0;
  /// out = round(decoded fp32 value) in out's dtype.
  virtual void decode(std::span<const std::byte> wire, MutView out) const = 0;

  /// sum += decoded value (fp32).
  virtual void decode_add(std::span<const std::byte> wire, std::span<float> sum) const;

  /// out = round((wires[0] + wires[1] + ...) / divisor), summed in fp32 in that order, starting
  /// from the first source; true division. A NaN result is 0x7FC00000, here and in decode_add:
  /// which operand's payload survives an addition differs between instruction sets.
  virtual void decode_sum(std::span<const std::span<const std::byte>> wires, float divisor,
                          MutView out) const;

  /// The same for codecs whose receivers keep state. `ctx` is the receiver's own: `sender` is
  /// this rank, the rest is that of the wires. A sum always has its sources in the same places,
  /// and each (tensor, part, level, second_hop) is decoded once a micro-step.
  virtual void decode_with(std::span<const std::byte> wire, const CodecContext& ctx,
                           MutView out) const;
  virtual void decode_sum_with(std::span<const std::span<const std::byte>> wires, float divisor,
                               const CodecContext& ctx, MutView out) const;

  /// The codec that decodes these bytes as well: decorators that only encode differently say
  /// the one behind them, so that fused kernels know it.
  virtual const Codec& decoder() const { return *this; }

  /// Encodes that sum with `this`, having decoded the sources (n elements each) with `from`;
  /// one pass where both are block codecs. Equal to from.decode_sum into fp32, then encode.
  virtual std::size_t reduce_encode(const Codec& from,
                                    std::span<const std::span<const std::byte>> wires,
                                    std::size_t n, float divisor, const CodecContext& ctx,
                                    std::span<std::byte> wire) const;
};

using CodecPtr = std::shared_ptr<const Codec>;

}  // namespace zeropp::quant
