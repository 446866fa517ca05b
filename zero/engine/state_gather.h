#pragma once

#include <functional>
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

}  // namespace zeropp::zero
