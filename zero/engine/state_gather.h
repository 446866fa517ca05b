#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "zero/engine/context.h"

namespace zeropp::zero {

/// Collects fp32 data that every rank has for its own world chunks, on rank 0 (empty
/// elsewhere). `own(t)` returns `parts` runs of the own chunk's length one after the other; the
/// result holds per tensor `parts` runs of numel. Role control, phase checkpoint; rank 0
/// receives one rank at a time.
std::vector<std::vector<float>> gather_on_root(
    EngineContext& context, int parts,
    const std::function<std::vector<float>(std::uint32_t tensor)>& own);

/// Each rank's bytes on rank 0, in rank order; empty elsewhere. Role control.
std::vector<std::vector<std::byte>> gather_bytes_on_root(EngineContext& context,
                                                         std::span<const std::byte> own);

}  // namespace zeropp::zero
