#include "experiments/safetensors/writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "experiments/json_io.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

std::uint64_t element_bytes(const std::string& dtype) { return dtype == "F32" ? 4 : 1; }

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};

void put(std::FILE* file, const void* data, std::size_t bytes) {
  if (bytes != 0 && std::fwrite(data, 1, bytes, file) != bytes) {
    throw std::system_error(errno, std::generic_category());
  }
}

std::string header_of(const std::vector<TensorToWrite>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const TensorToWrite& t : tensors) {
    header[t.name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {at, at + t.data.size()}}};
    at += t.data.size();
  }
  std::string text = header.dump();  // As compact as the reference writer's.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

void sync_to_disk(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool ok = fd >= 0 && (::fsync(fd) == 0 || errno == EINVAL);  // Not every disk can.
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!ok) cannot_write(path, error);
}

void write_safetensors(const std::filesystem::path& path, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    const auto x = element_bytes(a.dtype), y = element_bytes(b.dtype);
    return x != y ? x > y : a.name < b.name;
  });
  for (const TensorToWrite& t : tensors) {
    std::uint64_t n = element_bytes(t.dtype);
    for (const std::uint64_t extent : t.shape) n *= extent;
    if (n != t.data.size()) {
      throw UsageError("safetensors: " + t.name, fmt::format("{} bytes of its shape", n),
                       std::to_string(t.data.size()));
    }
  }
  const std::string header = header_of(tensors, metadata);
  const std::uint64_t size = header.size();
  try {
    std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "wb"));
    if (!file) throw std::system_error(errno, std::generic_category());
    put(file.get(), &size, sizeof size);
    put(file.get(), header.data(), header.size());
    for (const TensorToWrite& t : tensors) put(file.get(), t.data.data(), t.data.size());
    if (std::fclose(file.release()) != 0) {
      throw std::system_error(errno, std::generic_category());
    }
    sync_to_disk(path);
  } catch (const std::system_error& e) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    cannot_write(path, e.code().value());
  }
}

}  // namespace zeropp::experiments
