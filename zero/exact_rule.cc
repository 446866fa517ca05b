#include <fnmatch.h>

#include <algorithm>

#include "zero/engine.h"

namespace zeropp::zero {

bool ExactRule::applies(const TensorSpec& tensor) const {
  if (one_d && tensor.shape.size() < 2) return true;
  if (tensor.numel < below) return true;
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), tensor.name.c_str(), 0) == 0;
  });
}

}  // namespace zeropp::zero
