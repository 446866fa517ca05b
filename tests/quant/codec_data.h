#pragma once

// The contract's inputs and tools under the name that codec tests use.

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "quant/codec.h"
#include "quant/contract/data.h"
#include "quant/convert.h"
#include "quant/dtype.h"
#include "quant/rng.h"
#include "quant/simd.h"

namespace zeropp::quant::testing_support {

using namespace contract;  // NOLINT

}  // namespace zeropp::quant::testing_support
