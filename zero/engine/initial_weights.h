#pragma once

#include "zero/engine/context.h"

namespace zeropp::zero {

/// The initial weights of this rank's shard at a modulus, rounded to out's dtype. Keyed by
/// (seed, tensor, element): every rank can have any shard of them without a message.
void initial_weights(const EngineContext& context, std::uint32_t tensor, int modulus,
                     quant::MutView out);

}  // namespace zeropp::zero
