#pragma once

#include <string>

#include "hierarchy/ledger.h"

namespace zeropp::hierarchy {

/// "all_gather (hierarchical, hop 0, phase forward, role weight)", for errors.
std::string describe(const CallInfo& call);

/// "", or " (count: expected 5003 elements, found 5004; dtype: ...)": what of dtype, count,
/// codecs and group differs.
std::string describe_difference(const CallContent& expected, const CallContent& found);

}  // namespace zeropp::hierarchy
