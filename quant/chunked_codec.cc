#include "quant/chunked_codec.h"

#include "quant/builtin_codecs.h"

namespace zeropp::quant {

WireBytes ChunkedCodec::wire_bytes(std::size_t n) const {
  WireBytes bytes;
  if (const std::size_t full = n / chunk_; full > 0) {
    const WireBytes one = chunk_bytes(chunk_);
    bytes = {.payload = one.payload * full,
             .scale = one.scale * full,
             .padding = one.padding * full,
             .exact = one.exact * full};
  }
  if (n % chunk_ != 0) bytes += chunk_bytes(n % chunk_);
  return bytes;
}

void ChunkedCodec::check(std::string_view what, std::size_t found, std::size_t n) const {
  require_wire_size(spec_, what, found, max_wire_size(n));
}

std::size_t ChunkedCodec::encode(ConstView x, const CodecContext&,
                                 std::span<std::byte> wire) const {
  for_chunks("encode", wire, x.n, [&](std::size_t first, std::size_t m, const std::byte* at) {
    encode_chunk(x.slice(first, m), wire.data() + (at - wire.data()));
  });
  return max_wire_size(x.n);
}

}  // namespace zeropp::quant
