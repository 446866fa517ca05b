#pragma once

#include <cstdint>

namespace zeropp::quant {

enum class Device : std::uint8_t { kCpu, kCuda };

/// Order of work on a device. On the CPU work is done when the call returns, so the default
/// stream is all there is; a CUDA stream carries its native handle.
struct Stream {
  Device device = Device::kCpu;
  void* native = nullptr;
};

}  // namespace zeropp::quant
