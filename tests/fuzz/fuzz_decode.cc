// Decoding of arbitrary bytes by every codec of the registry: nothing is read or written
// outside the spans, a wire that is too short is refused, one of the right size never is.

#include <algorithm>
#include <array>
#include <vector>

#include "quant/codec_state.h"
#include "quant/error.h"
#include "quant/registry.h"
#include "quant/simd.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace zeropp::quant;  // NOLINT: a program of one file.

const std::vector<CodecPtr>& codecs() {
  static const std::vector<CodecPtr> all = [] {
    std::vector<CodecPtr> list;
    for (const CodecEntry& e : codec_entries()) {
      for (const std::string& spec : e.examples) list.push_back(make_codec(spec));
    }
    return list;
  }();
  return all;
}

/// False where it refuses; other exceptions than the two families end the run.
template <class Call>
bool accepts(const Call& call) {
  try {
    call();
  } catch (const zeropp::UsageError&) {
    return false;
  } catch (const zeropp::TransportError&) {
    return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zeropp::fuzz::Input input(data, size);
  const Codec& codec = *codecs()[input.below(codecs().size())];
  const std::size_t mode = input.below(8), n = input.below(700) * (mode % 2 == 0 ? 1 : 13);
  const Dtype dtype = std::array{Dtype::kF32, Dtype::kBF16, Dtype::kF16}[input.below(3)];
  force_simd_target((mode & 2) != 0 ? "scalar" : "");
  const std::size_t full = codec.max_wire_size(n);
  const bool right = (mode & 4) == 0;
  const std::size_t wire_size = right ? full : std::min(input.rest().size(), full + 3);
  const zeropp::fuzz::Exact wire(input.rest(), wire_size);

  std::unique_ptr<std::byte[]> out(new std::byte[n * size_of(dtype)]);
  std::unique_ptr<float[]> sum(new float[n]());
  std::unique_ptr<std::byte[]> again(new std::byte[full]);
  const MutView view{out.get(), dtype, n};
  const std::vector<std::span<const std::byte>> wires(2, wire.span());
  CodecState state;
  const CodecContext ctx{.tensor = 1, .sender = 2, .state = &state};
  std::vector<bool> accepted;
  if (codec.traits().receiver_state) {
    accepted = {accepts([&] { codec.decode_with(wire.span(), ctx, view); }),
                accepts([&] { codec.decode_sum_with(wires, 2, ctx, view); })};
  } else {
    accepted = {accepts([&] { codec.decode(wire.span(), view); }), accepts([&] {
                  codec.decode_add(wire.span(), {sum.get(), n});
                }),
                accepts([&] { codec.decode_sum(wires, 2, view); }), accepts([&] {
                  codec.reduce_encode(codec.decoder(), wires, n, 2, ctx, {again.get(), full});
                })};
  }
  if (!codec.traits().fixed_rate) return 0;
  for (const bool a : accepted) {
    zeropp::fuzz::promise(a == (wire_size >= full), "wires are refused if they are too short");
  }
  return 0;
}
