#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "quant/codec.h"

namespace zeropp::quant {

/// A fixed-rate codec that cuts a span into chunks (the last may be shorter) which are coded on
/// their own: the wire is the chunks' bytes one after the other.
class ChunkedCodec : public Codec {
 public:
  /// chunk = kWholeSpan: one chunk, whatever n is.
  ChunkedCodec(std::string spec, std::size_t chunk) : spec_(std::move(spec)), chunk_(chunk) {}

  const std::string& spec() const final { return spec_; }
  WireBytes wire_bytes(std::size_t n) const final;
  std::size_t encode(ConstView x, const CodecContext& ctx,
                     std::span<std::byte> wire) const final;

 protected:
  std::size_t chunk() const { return chunk_; }
  /// Bytes of a chunk of m > 0 numbers.
  virtual WireBytes chunk_bytes(std::size_t m) const = 0;
  /// Writes all chunk_bytes(x.n) of `wire`.
  virtual void encode_chunk(ConstView x, std::byte* wire) const = 0;

  /// Calls use(first, m, bytes of the chunk); UsageError if `wire` is too short for n.
  template <class Use>
  void for_chunks(std::string_view what, std::span<const std::byte> wire, std::size_t n,
                  const Use& use) const {
    check(what, wire.size(), n);
    const auto full = static_cast<std::size_t>(n < chunk_ ? 0 : chunk_bytes(chunk_).total());
    for (std::size_t first = 0, at = 0; first < n; first += chunk_, at += full) {
      use(first, std::min(chunk_, n - first), wire.data() + at);
    }
  }

 private:
  void check(std::string_view what, std::size_t found, std::size_t n) const;

  std::string spec_;
  std::size_t chunk_;
};

}  // namespace zeropp::quant
