#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quant/memory.h"

namespace zeropp::experiments {

/// A family of synthetic numbers that codecs are measured on.
struct DataFamily {
  std::string_view name, help;
};
const std::vector<DataFamily>& data_families();

/// n numbers of a family, those of rank `variation`: a pure function of its arguments.
/// UsageError lists the families.
quant::Tensor family_data(std::string_view family, quant::Dtype dtype, std::size_t n,
                          std::uint32_t variation);

}  // namespace zeropp::experiments
