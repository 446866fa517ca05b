#pragma once

#include <string>

#include "hierarchy/ledger.h"

namespace zeropp::hierarchy {

/// "all_gather (hierarchical, hop 0, phase forward, role weight)", for errors.
std::string describe(const CallInfo& call);

}  // namespace zeropp::hierarchy
