#include "experiments/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "experiments/job.h"
#include "experiments/json_io.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace tensorboard {
namespace {

/// Little-endian on every machine.
template <class Unsigned>
std::string fixed(Unsigned value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    out += static_cast<char>((value >> (8 * i)) & 0xFF);
  }
  return out;
}

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  return out + static_cast<char>(value);
}

// Fields of protocol buffers: number << 3 | wire type.
std::string key(unsigned field, unsigned type) { return varint(field << 3 | type); }
std::string integer(unsigned field, std::uint64_t v) { return key(field, 0) + varint(v); }
std::string real(unsigned field, double v) {
  return key(field, 1) + fixed(std::bit_cast<std::uint64_t>(v));
}
std::string real32(unsigned field, float v) {
  return key(field, 5) + fixed(std::bit_cast<std::uint32_t>(v));
}
std::string bytes(unsigned field, std::string_view v) {
  return key(field, 2) + varint(v.size()) + std::string(v);
}

/// CRC-32C (Castagnoli, reflected) as TFRecord masks it.
std::uint32_t masked_crc(std::string_view data) {
  std::uint32_t crc = ~0u;
  for (const unsigned char byte : data) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78u : 0);
  }
  return std::rotr(~crc, 15) + 0xA282EAD8u;
}

/// A value that only carries the plug-in's content: a tensor of float of shape (0).
std::string hparams_event(double wall_time, std::string_view tag, std::string_view content) {
  const std::string tensor = integer(1, 1) + bytes(2, bytes(2, ""));
  const std::string metadata = bytes(1, bytes(1, "hparams") + bytes(2, content));
  const std::string value = bytes(1, tag) + bytes(8, tensor) + bytes(9, metadata);
  return real(1, wall_time) + bytes(5, bytes(1, value));
}

}  // namespace

std::string record(std::string_view data) {
  const std::string length = fixed(std::uint64_t{data.size()});
  return length + fixed(masked_crc(length)) + std::string(data) + fixed(masked_crc(data));
}

std::string version_event(double wall_time) {
  return real(1, wall_time) + bytes(3, "brain.Event:2");
}

std::string scalar_event(double wall_time, std::uint64_t step, std::string_view tag,
                         double value) {
  const std::string scalar = bytes(1, tag) + real32(2, static_cast<float>(value));
  return real(1, wall_time) + integer(2, step) + bytes(5, bytes(1, scalar));
}

std::string session_start_event(
    double wall_time, std::string_view group,
    const std::vector<std::pair<std::string, std::string>>& hparams) {
  std::string info;
  for (const auto& [name, text] : hparams) {
    info += bytes(1, bytes(1, name) + bytes(2, bytes(3, text)));
  }
  info += bytes(4, group) + real(5, wall_time);
  return hparams_event(wall_time, "_hparams_/session_start_info", bytes(3, info));
}

std::string session_end_event(double wall_time, bool success) {
  const std::string info = integer(1, success ? 1 : 2) + real(2, wall_time);
  return hparams_event(wall_time, "_hparams_/session_end_info", bytes(4, info));
}

}  // namespace tensorboard

namespace {

namespace fs = std::filesystem;
namespace tb = tensorboard;

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kSuffix = ".zeropp";  ///< Others' files stay.

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::vector<std::pair<std::string, std::string>> hparams(const VariantConfig& v) {
  return {{"variant", v.name},
          {"stage", std::to_string(v.engine.policy.stage)},
          {"codecs.weights", v.weight_codec},
          {"codecs.gradients", fmt::format("{}", fmt::join(v.gradient_codecs, ", "))},
          {"algorithm", std::string(hierarchy::name(v.engine.algorithm))},
          {"secondary", v.secondary}};
}

}  // namespace

fs::path tensorboard_dir(const fs::path& job, const VariantConfig& variant,
                         std::uint64_t seed) {
  if (variant.tensorboard_dir.empty()) return job;
  return fs::path(variant.tensorboard_dir) / variant.name / fmt::format("seed-{}", seed);
}

void remove_event_files(const fs::path& dir) {
  std::error_code ec;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, ec)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) fs::remove(entry.path(), ec);
  }
}

TensorboardWriter::TensorboardWriter(const fs::path& dir, const VariantConfig& variant) {
  make_directory(dir);
  remove_event_files(dir);
  const double time = now();
  path_ = dir / fmt::format("{}{:010}.{}.{}{}", kPrefix, static_cast<std::int64_t>(time),
                            host(), ::getpid(), kSuffix);
  file_.reset(std::fopen(path_.c_str(), "wb"));
  const std::string group = fmt::format("{}-{}", variant.name, variant.hash.substr(0, 8));
  write(tb::record(tb::version_event(time)) +
        tb::record(tb::session_start_event(time, group, hparams(variant))));
}

void TensorboardWriter::step(const StepRecord& r) {
  const double time = now();
  std::string text;
  const auto scalar = [&](std::string_view tag, double value) {
    text += tb::record(tb::scalar_event(time, r.step, tag, value));
  };
  scalar("train/loss", r.result.loss);
  scalar("grad_norm", r.result.grad_norm);
  scalar("lr", r.result.lr);
  scalar("loss_scale", r.result.loss_scale);
  scalar("skipped_steps", static_cast<double>(r.skipped_steps));
  scalar("time_s", r.seconds);
  if (r.val_loss) scalar("val/loss", *r.val_loss);
  write(text);
}

void TensorboardWriter::end(bool success) {
  write(tb::record(tb::session_end_event(now(), success)));
}

void TensorboardWriter::write(std::string_view records) {
  if (file_ == nullptr ||
      std::fwrite(records.data(), 1, records.size(), file_.get()) != records.size() ||
      std::fflush(file_.get()) != 0) {
    throw UsageError("tensorboard", "a file that can be written",
                     path_.string() + ": " + std::generic_category().message(errno));
  }
}

}  // namespace zeropp::experiments
