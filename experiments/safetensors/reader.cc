#include "experiments/safetensors/reader.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <array>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "experiments/json_io.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

constexpr std::uint64_t kPrefix = 8;  // The header's size, little-endian.
constexpr std::uint64_t kMaxHeader = std::uint64_t{100} << 20;  // As the reference reader.

struct FileDtype {
  const char* name;
  std::uint64_t bytes;
  std::optional<quant::Dtype> dtype;
};
constexpr std::array kDtypes{FileDtype{"F32", 4, quant::Dtype::kF32},
                             FileDtype{"BF16", 2, quant::Dtype::kBF16},
                             FileDtype{"F16", 2, quant::Dtype::kF16},
                             FileDtype{"F64", 8, {}},
                             FileDtype{"F8_E4M3", 1, {}},
                             FileDtype{"F8_E5M2", 1, {}},
                             FileDtype{"I64", 8, {}},
                             FileDtype{"I32", 4, {}},
                             FileDtype{"I16", 2, {}},
                             FileDtype{"I8", 1, {}},
                             FileDtype{"U64", 8, {}},
                             FileDtype{"U32", 4, {}},
                             FileDtype{"U16", 2, {}},
                             FileDtype{"U8", 1, {}},
                             FileDtype{"BOOL", 1, {}}};

/// One tensor's entry, told as `area` where it is wrong.
class EntryReader {
 public:
  EntryReader(const Json& entry, std::string area) : entry_(entry), area_(std::move(area)) {}

  const Json& at(const char* key) const {
    if (!entry_.is_object()) throw UsageError(area_, "a JSON object", shown(entry_));
    const auto it = entry_.find(key);
    if (it == entry_.end()) throw UsageError(area_, std::string("the key ") + key, "none");
    return *it;
  }
  std::vector<std::uint64_t> numbers(const char* key) const {
    const Json& list = at(key);
    std::vector<std::uint64_t> result;
    bool good = list.is_array();
    for (std::size_t i = 0; good && i < list.size(); ++i) {
      good = list[i].is_number_unsigned();
      if (good) result.push_back(list[i].get<std::uint64_t>());
    }
    if (!good) fail(std::string(key) + " to be whole numbers", shown(list));
    return result;
  }
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw UsageError(area_, expected, found);
  }
  static std::string shown(const Json& value) {
    std::string text = to_text(value, -1);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return text;
  }

 private:
  const Json& entry_;
  std::string area_;
};

/// a * b, or nothing where 64 bits cannot hold it.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t c = 0;
  if (__builtin_mul_overflow(a, b, &c)) return std::nullopt;
  return c;
}

SafeTensor read_entry(const std::string& name, const Json& json, std::uint64_t data_bytes,
                      const std::string& source) {
  const EntryReader entry(json, source + ": tensor '" + name + "'");
  SafeTensor t;
  t.name = name;
  const Json& dtype = entry.at("dtype");
  const FileDtype* known = nullptr;
  for (const FileDtype& d : kDtypes) {
    if (dtype.is_string() && dtype.get_ref<const std::string&>() == d.name) known = &d;
  }
  if (known == nullptr) entry.fail("a dtype of safetensors", EntryReader::shown(dtype));
  t.dtype = known->name;
  t.float_dtype = known->dtype;
  t.shape = entry.numbers("shape");
  std::optional<std::uint64_t> elements = 1;
  for (const std::uint64_t extent : t.shape) {
    if (elements) elements = product(*elements, extent);
  }
  const auto bytes = elements ? product(*elements, known->bytes) : std::nullopt;
  if (!bytes) entry.fail("a shape whose bytes 64 bits can count", EntryReader::shown(json));
  t.elements = *elements;
  t.bytes = *bytes;
  const auto offsets = entry.numbers("data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    entry.fail(
        fmt::format("data_offsets [begin, end] in the file's {} bytes of data", data_bytes),
        EntryReader::shown(json["data_offsets"]));
  }
  t.begin = offsets[0];
  if (offsets[1] - offsets[0] != t.bytes) {
    entry.fail(fmt::format("data_offsets {} bytes apart, as dtype and shape say", t.bytes),
               EntryReader::shown(json["data_offsets"]));
  }
  return t;
}

/// The header's size from the file's first bytes, checked against the size of the file.
std::uint64_t header_size(std::string_view prefix, std::uint64_t file_bytes,
                          const std::string& source) {
  if (prefix.size() < kPrefix) {
    throw UsageError(source, "a .safetensors file", fmt::format("{} bytes", file_bytes));
  }
  std::uint64_t size = 0;
  std::memcpy(&size, prefix.data(), kPrefix);
  if (size > kMaxHeader || size > file_bytes - kPrefix) {
    throw UsageError(source, "a .safetensors file, which begins with its header's size",
                     fmt::format("a header of {} bytes in a file of {}", size, file_bytes));
  }
  return size;
}

}  // namespace

namespace {

std::vector<SafeTensor> read_entries(const Json& header, std::uint64_t data_bytes,
                                     const std::string& source) {
  if (!header.is_object()) throw UsageError(source, "a JSON object as header", "another value");
  std::vector<SafeTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") tensors.push_back(read_entry(name, entry, data_bytes, source));
  }
  return tensors;
}

}  // namespace

std::vector<SafeTensor> parse_safetensors_header(std::string_view json,
                                                 std::uint64_t data_bytes,
                                                 const std::string& source) {
  return read_entries(parse_json(json, source), data_bytes, source);
}

std::vector<SafeTensor> parse_safetensors(std::string_view bytes, const std::string& source) {
  const std::uint64_t size = header_size(bytes.substr(0, kPrefix), bytes.size(), source);
  return parse_safetensors_header(bytes.substr(kPrefix, size), bytes.size() - kPrefix - size,
                                  source);
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  const std::string source = path_.string();
  std::error_code ec;
  const std::uint64_t file_bytes = std::filesystem::file_size(path_, ec);
  std::ifstream file(path_, std::ios::binary);
  if (ec || !file) {
    throw UsageError(source, "a file that can be read",
                     ec ? ec.message() : "one that cannot be opened");
  }
  std::string prefix(kPrefix, '\0');
  file.read(prefix.data(), kPrefix);
  prefix.resize(static_cast<std::size_t>(file.gcount()));
  const std::uint64_t size = header_size(prefix, file_bytes, source);
  std::string json(static_cast<std::size_t>(size), '\0');
  file.read(json.data(), static_cast<std::streamsize>(size));
  if (file.gcount() != static_cast<std::streamsize>(size)) {
    throw UsageError(source, fmt::format("{} bytes of header", size), "fewer");
  }
  data_at_ = kPrefix + size;
  const Json header = parse_json(json, source);
  tensors_ = read_entries(header, file_bytes - data_at_, source);
  if (const auto found = header.find("__metadata__"); found != header.end()) {
    for (const auto& [key, value] : found->items()) {
      if (value.is_string()) metadata_[key] = value.get<std::string>();
    }
  }
}

const SafeTensor* SafetensorsFile::find(std::string_view name) const {
  for (const SafeTensor& t : tensors_) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

void SafetensorsFile::read_into(const SafeTensor& tensor, void* to) const {
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(data_at_ + tensor.begin));
  const auto bytes = static_cast<std::streamsize>(tensor.bytes);
  if (bytes > 0) file.read(static_cast<char*>(to), bytes);
  if (!file || (bytes > 0 && file.gcount() != bytes)) {
    throw UsageError(path_.string() + ": tensor '" + tensor.name + "'",
                     fmt::format("{} bytes of data", bytes), "a file that ends before");
  }
}

quant::Tensor SafetensorsFile::read(const SafeTensor& tensor) const {
  if (!tensor.float_dtype) {
    throw UsageError(path_.string() + ": tensor '" + tensor.name + "'", "F32, BF16 or F16",
                     tensor.dtype);
  }
  quant::Tensor x(nullptr, quant::MemoryKind::kHost, *tensor.float_dtype,
                  static_cast<std::size_t>(tensor.elements));
  read_into(tensor, x.view().data);
  return x;
}

std::vector<std::byte> SafetensorsFile::read_bytes(const SafeTensor& tensor) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
  read_into(tensor, bytes.data());
  return bytes;
}

bool matches_glob(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace zeropp::experiments
