#pragma once

#include <cstddef>
#include <span>

#include "quant/codec.h"

namespace zeropp::hierarchy::detail {

/// codec.decode_sum_with, with one pass over all sources at once where they are fp32 elements:
/// as many streams that the hardware can prefetch, instead of one short run after the other.
void decode_sum(const quant::Codec& codec, std::span<const std::span<const std::byte>> wires,
                float divisor, const quant::CodecContext& receiver, quant::MutView out);

/// to.reduce_encode, without its scratch sum where a cast to fp32 is what is sent. Not fused
/// where receivers of `from` keep state.
std::size_t encode_sum(const quant::Codec& from, const quant::Codec& to,
                       std::span<const std::span<const std::byte>> wires, std::size_t n,
                       float divisor, const quant::CodecContext& receiver,
                       const quant::CodecContext& sender, std::span<std::byte> place);

}  // namespace zeropp::hierarchy::detail
