#include <filesystem>
#include <string>

#include "experiments/resolve.h"
#include "quant/error.h"

namespace zeropp::experiments {

void resolve_tensorboard(const ConfigView& c, VariantConfig& v) {
  v.tensorboard = c.get_bool("tensorboard.enabled");
  const auto text = [&](const char* path) {
    return c.has(path) ? c.get_string(path) : std::string();
  };
  const std::filesystem::path root = text("tensorboard.output_path");
  const std::string job = text("tensorboard.job_name");
  if (!v.tensorboard) return;
  if (root.empty() && !job.empty()) {
    throw UsageError(
        "config", "tensorboard.output_path where tensorboard.job_name names a folder below it",
        "'" + job + "' alone");
  }
  v.tensorboard_dir = (job.empty() ? root : root / job).string();
}

}  // namespace zeropp::experiments
