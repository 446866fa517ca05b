#pragma once

#include <span>
#include <string>

#include "zero/engine/context.h"

namespace zeropp::zero {

/// Law 3: hashes `views` and compares them among the ranks that agree mod `modulus` (1 = all).
/// Collective, role control. Throws TransportError that names what, step and the two ranks.
void check_replicas(EngineContext& context, const std::string& what, int modulus,
                    std::span<const quant::ConstView> views);

}  // namespace zeropp::zero
