#include "zero/data.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <tuple>

#include "quant/error.h"
#include "quant/rng.h"
#include "zero/bible.h"

namespace zeropp::zero {
namespace {

namespace fs = std::filesystem;

/// A file that changed since is another dataset.
using CacheKey = std::tuple<std::string, double, fs::file_time_type, std::uintmax_t>;

std::vector<std::uint8_t> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<std::uint8_t> bytes((std::istreambuf_iterator<char>(in)),
                                  std::istreambuf_iterator<char>());
  if (!in) throw UsageError("data", "a readable text file", "'" + path + "'");
  return bytes;
}

CacheKey cache_key(const std::string& name, double fraction) {
  if (name == "kjv") return {name, fraction, {}, 0};
  std::error_code error;
  if (!fs::is_regular_file(name, error)) {
    throw UsageError("data", "'kjv' or the path of a text file", "'" + name + "'");
  }
  const auto time = fs::last_write_time(name, error);
  const auto size = fs::file_size(name, error);
  if (error) throw UsageError("data", "a readable text file", "'" + name + "'");
  return {name, fraction, time, size};
}

std::shared_ptr<const Dataset> load(const std::string& name, double fraction) {
  auto data = std::make_shared<Dataset>();
  data->name = name;
  data->bytes = name == "kjv" ? bible_text() : read_file(name);
  data->sha256 = sha256_hex(data->bytes.data(), data->bytes.size());
  const double held_out = std::floor(static_cast<double>(data->bytes.size()) * fraction);
  data->train_bytes = data->bytes.size() - static_cast<std::size_t>(held_out);
  return data;
}

void copy_window(const Dataset& data, std::size_t start, int seq, std::int32_t* tokens,
                 std::int32_t* targets) {
  const std::uint8_t* text = data.bytes.data() + start;
  for (int i = 0; i < seq; ++i) {
    tokens[i] = text[i];
    targets[i] = text[i + 1];
  }
}

std::size_t checked_seq(int seq) {
  if (seq < 1) throw UsageError("data", "a sequence of at least 1 token", std::to_string(seq));
  return static_cast<std::size_t>(seq);
}

/// floor(word * count / 2^64): uniform in [0, count) up to count / 2^64.
std::uint64_t scale_to(std::uint64_t word, std::uint64_t count) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(word) * count) >> 64);
}

}  // namespace

std::shared_ptr<const Dataset> load_dataset(const std::string& name,
                                            double validation_fraction) {
  if (!(validation_fraction >= 0 && validation_fraction < 1)) {
    throw UsageError("data", "validation_fraction in [0, 1)",
                     fmt::format("{}", validation_fraction));
  }
  static std::mutex mutex;
  static std::map<CacheKey, std::shared_ptr<const Dataset>> cache;
  const CacheKey key = cache_key(name, validation_fraction);
  const std::lock_guard<std::mutex> lock(mutex);  // Held while loading: others wait for it.
  auto& entry = cache[key];
  if (!entry) entry = load(name, validation_fraction);
  return entry;
}

void train_sample(const Dataset& data, std::uint64_t seed, std::uint64_t index, int seq,
                  std::int32_t* tokens, std::int32_t* targets) {
  const std::size_t length = checked_seq(seq);
  if (data.train_bytes < length + 1) {
    throw UsageError("data", fmt::format("at least {} bytes to train on (seq + 1)", length + 1),
                     fmt::format("{} in '{}'", data.train_bytes, data.name));
  }
  constexpr std::uint64_t kMaxIndex = std::uint64_t{1} << 36;  // Blocks of a Philox key.
  if (index >= kMaxIndex) {
    throw UsageError("data", "fewer than 2^36 samples in a run", std::to_string(index));
  }
  const quant::Philox random({.seed = seed, .purpose = quant::Purpose::kData});
  const auto words = random.block(index);
  const std::uint64_t word = std::uint64_t{words[1]} << 32 | words[0];
  copy_window(data, scale_to(word, data.train_bytes - length), seq, tokens, targets);
}

std::uint64_t validation_windows(const Dataset& data, int seq) {
  const std::size_t length = checked_seq(seq);
  const std::size_t held_out = data.bytes.size() - data.train_bytes;
  return held_out == 0 ? 0 : (held_out - 1) / length;
}

void validation_sample(const Dataset& data, std::uint64_t index, int seq, std::int32_t* tokens,
                       std::int32_t* targets) {
  const std::uint64_t windows = validation_windows(data, seq);
  if (index >= windows) {
    throw UsageError("data", fmt::format("a held-out window below {} (seq {})", windows, seq),
                     std::to_string(index));
  }
  copy_window(data, data.train_bytes + index * static_cast<std::uint64_t>(seq), seq, tokens,
              targets);
}

}  // namespace zeropp::zero
