#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quant/dtype.h"
#include "quant/memory.h"

namespace zeropp::experiments {

/// One tensor of a .safetensors file (https://huggingface.co/docs/safetensors): 8 bytes of
/// header size, a JSON header, the data.
struct SafeTensor {
  std::string name;
  std::string dtype;  ///< As in the file: "F32", "BF16", "F16", "I64", ...
  std::optional<quant::Dtype> float_dtype;  ///< Of those that can be read here.
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 0;
  std::uint64_t begin = 0;  ///< Bytes from the start of the data.
  std::uint64_t bytes = 0;
};

/// The tensors that a header names, by name. UsageError (area `source`) where the header is not
/// one, or names bytes that are not among the file's `data_bytes`.
std::vector<SafeTensor> parse_safetensors_header(std::string_view json,
                                                 std::uint64_t data_bytes,
                                                 const std::string& source);

/// The same of a file's bytes from its start (for headers that are in memory).
std::vector<SafeTensor> parse_safetensors(std::string_view bytes, const std::string& source);

/// A file whose header has been read and checked.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);  ///< UsageError.
  const std::vector<SafeTensor>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const SafeTensor* find(std::string_view name) const;
  /// The strings of `__metadata__`.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The numbers of a tensor with a float_dtype. UsageError where the file ends too early.
  quant::Tensor read(const SafeTensor& tensor) const;
  /// Of any dtype, as they are in the file.
  std::vector<std::byte> read_bytes(const SafeTensor& tensor) const;

 private:
  std::filesystem::path path_;
  void read_into(const SafeTensor& tensor, void* to) const;

  std::uint64_t data_at_ = 0;
  std::vector<SafeTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Whether a name fits a pattern of the shell: * ? [abc].
bool matches_glob(const std::string& pattern, const std::string& name);

}  // namespace zeropp::experiments
