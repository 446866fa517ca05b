#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "quant/codec.h"
#include "quant/memory.h"
#include "quant/registry.h"

namespace zeropp::quant {

/// A codec around another one. What an inner cast sends counts as payload: it is no longer the
/// number that was to be sent.
class DecoratorCodec : public Codec {
 public:
  const std::string& spec() const final { return spec_; }
  WireBytes wire_bytes(std::size_t n) const final;

 protected:
  /// `head` is the decorator's own part of the spec.
  DecoratorCodec(const std::string& head, CodecPtr inner);

  const Codec& inner() const { return *inner_; }
  /// Those that may hold of the decorated codec too; the others are not promised.
  CodecTraits inner_traits() const;
  /// Bytes that the decorator puts before the inner wire of n > 0 numbers; booked as scale.
  virtual std::uint64_t header_bytes(std::size_t n) const;
  std::size_t header_size(std::size_t n) const {
    return n == 0 ? 0 : static_cast<std::size_t>(header_bytes(n));
  }
  void check_wire(std::string_view what, std::size_t found, std::size_t needed) const;

  static Tensor scratch(std::size_t n) {
    return {nullptr, MemoryKind::kWorkspace, Dtype::kF32, n};
  }

 private:
  std::string spec_;
  CodecPtr inner_;
};

/// UsageError: the decorator cannot be around a codec that keeps state.
void refuse_state(const std::string& decorator, const Codec& inner);

/// key=number in [least, most]; its text is kept for canonical specs.
double number_arg(const CodecSpec& spec, const std::string& key, double fallback, double least,
                  double most);
/// The shortest text that reads back as the same number.
std::string number_text(double x);

}  // namespace zeropp::quant
