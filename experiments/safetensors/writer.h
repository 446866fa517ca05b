#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace zeropp::experiments {

/// A tensor to be written; the data stays the caller's.
struct TensorToWrite {
  std::string name;
  std::string dtype;  ///< "F32" or "U8".
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;
};

/// A whole .safetensors file, as the reference writer lays it out: a header padded to 8 bytes,
/// then the data without gaps, tensors of larger dtypes first, each dtype's by name. `metadata`
/// goes into `__metadata__`. On the disk (fsync) when it returns; UsageError, and no file,
/// where it cannot be written.
void write_safetensors(const std::filesystem::path& path, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata);

/// Waits until a file's or folder's content is on the disk. UsageError.
void sync_to_disk(const std::filesystem::path& path);

}  // namespace zeropp::experiments
