#pragma once

#include <cstddef>
#include <span>

#include "quant/codec.h"

namespace zeropp::quant::contract {

// Calls of any codec on its own: one that keeps state has a fresh one each time, as in the
// first step of a training, unless the context brings one.

std::size_t call_encode(const Codec& codec, ConstView x, CodecContext ctx,
                        std::span<std::byte> wire);
void call_decode(const Codec& codec, std::span<const std::byte> wire, CodecContext ctx,
                 MutView out);
void call_decode_sum(const Codec& codec, std::span<const std::span<const std::byte>> wires,
                     float divisor, CodecContext ctx, MutView out);
/// The sum of n numbers a wire, encoded again: what a collective does between two hops.
std::size_t call_reduce_encode(const Codec& to, const Codec& from,
                               std::span<const std::span<const std::byte>> wires, std::size_t n,
                               float divisor, CodecContext ctx, std::span<std::byte> wire);

}  // namespace zeropp::quant::contract
