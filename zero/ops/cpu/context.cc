#include "zero/ops/ops.h"

namespace zeropp::zero::ops {

std::byte* Context::scratch(Slot slot, std::size_t bytes) {
  quant::Buffer& buffer = slots_.at(static_cast<std::size_t>(slot));
  if (buffer.bytes() < bytes) {
    buffer.reset();  // Before the new one, so that the peak holds one of them.
    buffer = quant::Buffer(memory_, quant::MemoryKind::kWorkspace, bytes);
  }
  return buffer.data();
}

void Context::release() {
  for (quant::Buffer& buffer : slots_) buffer.reset();
}

}  // namespace zeropp::zero::ops
