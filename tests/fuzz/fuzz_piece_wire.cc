// What a peer sends in a collective: pieces with frames are taken off arbitrary bytes inside
// them, or refused with a TransportError, and then decoded.

#include <vector>

#include "hierarchy/collectives/common.h"
#include "quant/error.h"
#include "quant/registry.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace zeropp;  // NOLINT: a program of one file.

/// A variable rate, whatever else the registry has: the first byte says how many numbers
/// follow.
class Prefix final : public quant::Codec {
 public:
  const std::string& spec() const override { return spec_; }
  quant::CodecTraits traits() const override {
    quant::CodecTraits t;
    t.fixed_rate = false;
    return t;
  }
  quant::WireBytes wire_bytes(std::size_t n) const override {
    return {.payload = n, .scale = n > 0 ? 1U : 0U};
  }
  std::size_t encode(quant::ConstView, const quant::CodecContext&,
                     std::span<std::byte>) const override {
    return 0;
  }
  void decode(std::span<const std::byte> wire, quant::MutView out) const override {
    const std::size_t count = wire.empty() ? 0 : static_cast<std::size_t>(wire[0]);
    if (count > out.n || wire.size() < 1 + count) {
      throw UsageError(spec_, "a wire of its size", "another");
    }
  }

 private:
  std::string spec_ = "prefix";
};

const std::vector<quant::CodecPtr>& codecs() {
  static const std::vector<quant::CodecPtr> all = [] {
    std::vector<quant::CodecPtr> list{nullptr, std::make_shared<const Prefix>()};
    for (const quant::CodecEntry& e : quant::codec_entries()) {
      for (const std::string& spec : e.examples) list.push_back(quant::make_codec(spec));
    }
    std::erase_if(list, [](const quant::CodecPtr& c) {
      return c != nullptr && c->traits().receiver_state;
    });
    return list;
  }();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const quant::Codec* codec = codecs()[input.below(codecs().size())].get();
  const hierarchy::ChunkMap map{input.below(900), static_cast<int>(1 + input.below(6))};
  const hierarchy::detail::PieceWire wire(map, codec, quant::Dtype::kBF16);
  const fuzz::Exact message(input.rest(), input.rest().size());
  auto rest = message.span();
  std::vector<float> numbers;
  try {
    for (int chunk = 0; chunk < map.world; ++chunk) {
      const std::size_t n = map.size(chunk);
      if (n == 0) break;
      const auto piece = wire.take(n, rest);
      fuzz::promise(piece.size() <= wire.size(n), "a piece is at most its bound");
      fuzz::promise(
          piece.data() >= message.span().data() &&
              piece.data() + piece.size() <= message.span().data() + message.span().size(),
          "a piece lies inside its message");
      if (codec == nullptr) continue;
      const fuzz::Exact copy(
          {reinterpret_cast<const std::uint8_t*>(piece.data()), piece.size()}, piece.size());
      numbers.assign(n, 0);
      codec->decode(copy.span(), quant::mut_view(numbers));
    }
  } catch (const UsageError&) {
  } catch (const TransportError&) {
  }
  return 0;
}
