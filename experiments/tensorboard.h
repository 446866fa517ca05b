#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/run_config.h"

namespace zeropp::experiments {

struct StepRecord;

/// TensorBoard's event files, byte by byte: records of TFRecord framing (CRC-32C) that hold
/// protocol buffers `Event` (tensorboard/compat/proto/event.proto, summary.proto).
/// `wall_time` is in seconds since 1970.
namespace tensorboard {

/// u64 length, masked CRC of it, the data, masked CRC of the data; little-endian.
std::string record(std::string_view data);
/// The first event of a file: which format it has.
std::string version_event(double wall_time);
/// One point of a curve. TensorBoard keeps fp32: equality is for metrics.jsonl.
std::string scalar_event(double wall_time, std::uint64_t step, std::string_view tag,
                         double value);
/// A row of the HParams page. Runs of one `group` are averaged there.
std::string session_start_event(
    double wall_time, std::string_view group,
    const std::vector<std::pair<std::string, std::string>>& hparams);
std::string session_end_event(double wall_time, bool success);

}  // namespace tensorboard

/// Folder of a job's event file: its own folder `job`, or where the config sends it,
/// output_path/job_name/<variant>/seed-<s>. One folder a run, as TensorBoard wants it.
std::filesystem::path tensorboard_dir(const std::filesystem::path& job,
                                      const VariantConfig& variant, std::uint64_t seed);

/// Removes event files of this program; other programs' stay. Does not throw.
void remove_event_files(const std::filesystem::path& dir);

/// Writes one job's curves under the names of metrics.jsonl, whole records at a time, so that
/// TensorBoard follows while it runs. Event files that an earlier run of the same job left are
/// removed first. UsageError where it cannot write.
class TensorboardWriter {
 public:
  TensorboardWriter(const std::filesystem::path& dir, const VariantConfig& variant);
  void step(const StepRecord& record);
  void end(bool success);

 private:
  struct CloseFile {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  void write(std::string_view records);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
};

}  // namespace zeropp::experiments
