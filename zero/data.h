#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zero/model.h"

namespace zeropp::zero {

/// Text as byte tokens. The tail is held out, always the same bytes.
struct Dataset {
  std::string name;
  std::string sha256;
  std::vector<std::uint8_t> bytes;
  std::size_t train_bytes = 0;  ///< [0, train_bytes) trains, the rest validates.
  static constexpr int kVocab = 256;
};

/// "kjv": Debian's bible-kjv through its own program `bible -f`, checked against the expected
/// size; anything else is a path to a text file. UsageError says which package or path is
/// missing. `validation_fraction` of the bytes at the end are held out.
std::shared_ptr<const Dataset> load_dataset(const std::string& name,
                                            double validation_fraction = 0.05);

/// Fills one sample of seq tokens and targets; `index` is the global sample index
/// ((step*GAS + micro)*N + rank)*B + b. The window's start is Philox(seed, kData, index).
void train_sample(const Dataset& data, std::uint64_t seed, std::uint64_t index, int seq,
                  std::int32_t* tokens, std::int32_t* targets);
/// Held-out windows are consecutive and do not overlap: every held-out byte but the first is
/// predicted at most once. Count of whole windows.
std::uint64_t validation_windows(const Dataset& data, int seq);
void validation_sample(const Dataset& data, std::uint64_t index, int seq, std::int32_t* tokens,
                       std::int32_t* targets);

/// SHA-256 as lower-case hex; `Sha256` takes pieces.
std::string sha256_hex(const void* data, std::size_t bytes);
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, std::size_t bytes);
  std::string hex();  ///< Ends it.

 private:
  void* ctx_;
};

}  // namespace zeropp::zero
