#pragma once

// Inputs that break codecs, and the small tools that the contract and codec tests share.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quant/codec.h"
#include "quant/contract/calls.h"
#include "quant/dtype.h"

namespace zeropp::quant::contract {

inline constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};
using Bytes = std::vector<std::byte>;

/// Names of the inputs: zeros, outlier, denormals, huge, nan_first, inf_last, ...
const std::vector<std::string>& data_kinds();

/// n numbers of a kind; a pure function of its arguments.
std::vector<float> make_data(const std::string& kind, std::size_t n,
                             std::uint32_t variation = 0);

/// Owning bytes of one dtype, as a view; `shift` bytes before it spoil the alignment.
class Numbers {
 public:
  Numbers(Dtype dtype, std::size_t n, std::size_t shift = 0)
      : bytes_(n * size_of(dtype) + shift), dtype_(dtype), n_(n), shift_(shift) {}
  Numbers(Dtype dtype, const std::vector<float>& x);
  MutView view() { return {bytes_.data() + shift_, dtype_, n_}; }
  ConstView view() const { return {bytes_.data() + shift_, dtype_, n_}; }
  std::vector<float> floats() const;
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
  Dtype dtype_;
  std::size_t n_, shift_;
};

/// Of a sender on its own.
CodecContext context(std::uint32_t sender = 3);
/// Of one of six senders whose spans are summed, in a second hop.
CodecContext hop_context(std::uint32_t sender = 3);

/// What a collective does between two hops.
Bytes reduce_encode(const Codec& to, const Codec& from,
                    std::span<const std::span<const std::byte>> wires, std::size_t n,
                    float divisor);

Bytes encode(const Codec& c, ConstView x, const CodecContext& ctx = context());
std::vector<float> decode(const Codec& c, const Bytes& wire, std::size_t n);
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

/// Forces one instruction set for the life of the object.
class OnTarget {
 public:
  explicit OnTarget(const std::string& target);
  ~OnTarget();
  OnTarget(const OnTarget&) = delete;
  OnTarget& operator=(const OnTarget&) = delete;
};

}  // namespace zeropp::quant::contract
