#include "zero/powersgd.h"

#include <algorithm>
#include <charconv>

#include "quant/error.h"

namespace zeropp::zero {
namespace {

constexpr std::string_view kName = "powersgd";
constexpr int kMaxRank = 1024;

}  // namespace

int powersgd_rank(std::string_view spec) {
  if (spec.substr(0, spec.find(':')) != kName) return 0;
  if (spec == kName) return 4;
  constexpr std::string_view kPrefix = "powersgd:rank=";
  int rank = 0;
  const char* end = spec.data() + spec.size();
  const bool known = spec.substr(0, kPrefix.size()) == kPrefix;
  if (known) {
    const auto [at, error] = std::from_chars(spec.data() + kPrefix.size(), end, rank);
    if (error != std::errc{} || at != end) rank = 0;
  }
  if (rank < 1 || rank > kMaxRank) {
    throw UsageError("powersgd", "powersgd:rank=1 to " + std::to_string(kMaxRank),
                     "'" + std::string(spec) + "'");
  }
  return rank;
}

int powersgd_rank(std::span<const std::string> levels) {
  int rank = 0;
  std::string list;
  for (const std::string& spec : levels) {
    rank = std::max(rank, powersgd_rank(spec));
    list += (list.empty() ? "" : ", ") + spec;
  }
  for (const std::string& spec : levels) {
    if (rank == 0 || powersgd_rank(spec) == rank) continue;
    throw UsageError("powersgd", "powersgd alone: its means cross all levels", list);
  }
  return rank;
}

std::string powersgd_spec(int rank) {
  return std::string(kName) + ":rank=" + std::to_string(rank);
}

MatrixShape matrix_shape(const TensorSpec& tensor) {
  if (tensor.shape.size() < 2 || tensor.numel == 0) return {};
  return {.rows = tensor.shape[0], .cols = tensor.numel / tensor.shape[0]};
}

bool travels_low_rank(const EngineConfig& config, const TensorSpec& tensor) {
  if (config.powersgd_rank == 0 || config.exact_grads.applies(tensor)) return false;
  const auto [rows, cols] = matrix_shape(tensor);
  return rows > 0 &&
         2 * static_cast<std::size_t>(config.powersgd_rank) * (rows + cols) <= rows * cols;
}

}  // namespace zeropp::zero
