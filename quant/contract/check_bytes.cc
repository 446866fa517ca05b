// Checks of what is on the wire: sizes, bytes written, instruction sets, spans.

#include <cstdint>
#include <span>

#include "quant/contract/checks.h"
#include "quant/convert.h"
#include "quant/error.h"
#include "quant/registry.h"
#include "quant/rng.h"
#include "quant/simd.h"

namespace zeropp::quant::contract {
namespace {

constexpr std::byte kCanary{0xA5};

/// Whether f throws one of the two families of errors; other exceptions pass through.
template <class F>
bool refuses(const F& f) {
  try {
    f();
  } catch (const UsageError&) {
    return true;
  } catch (const TransportError&) {
    return true;
  }
  return false;
}

/// Everything that decoding gives of one wire: decode, decode_sum, decode_add.
Bytes decoded_bytes(const Codec& codec, const Bytes& wire, Dtype dtype, std::size_t n) {
  Numbers decoded(dtype, n), sum(dtype, n);
  call_decode(codec, wire, context(), decoded.view());
  const std::vector<std::span<const std::byte>> wires(3, wire);
  call_decode_sum(codec, wires, 3, context(), sum.view());
  std::vector<float> added(n, 0.5F);
  if (!codec.traits().receiver_state) codec.decode_add(wire, added);
  Bytes all = decoded.bytes();
  all.insert(all.end(), sum.bytes().begin(), sum.bytes().end());
  const auto more = view(added).as_bytes();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Bytes reduced_bytes(const Codec& codec, const Bytes& wire, std::size_t n) {
  return reduce_encode(codec, codec, std::vector<std::span<const std::byte>>(3, wire), n, 3);
}

/// Decodes into a view between canaries. Returns the view's bytes, or nothing where a
/// variable-rate codec refuses the wire.
Bytes decode_guarded(const Codec& codec, std::span<const std::byte> wire, Dtype dtype,
                     std::size_t n) {
  constexpr std::size_t kGuard = 32;
  Bytes out(n * size_of(dtype) + 2 * kGuard, kCanary);
  const bool refused = refuses([&] {
    call_decode(codec, wire, context(), {out.data() + kGuard, dtype, n});
  });
  for (std::size_t i = 0; i < kGuard; ++i) {
    expect(out[i] == kCanary, "decode writes before its view");
    expect(out[out.size() - 1 - i] == kCanary, "decode writes past its view");
  }
  if (!refused) return out;
  expect(!codec.traits().fixed_rate, "decode refuses a wire of the right size");
  return {};
}

}  // namespace

void spec_is_canonical(Subject& s) {
  const Codec& codec = s.codec();
  const auto again = make_codec(codec.spec());
  expect(again->spec() == codec.spec(),
         [&] { return "spec '" + codec.spec() + "' reads back as '" + again->spec() + "'"; });
  expect(again->traits().block == codec.traits().block, "its spec has another block");
  expect(again->wire_bytes(12345) == codec.wire_bytes(12345), "its spec has other sizes");
}

void sizes_add_up(Subject& s) {
  const Codec& codec = s.codec();
  const CodecTraits traits = s.traits();
  const auto total = [&](std::uint64_t n) {
    s.at("n = " + std::to_string(n));
    return codec.wire_bytes(static_cast<std::size_t>(n)).total();
  };
  expect(total(0) == 0, "wire_bytes(0) is not empty");
  // Nothing is allocated: lengths that 32 bits, or 32 bits of bytes, cannot hold.
  const double rate = static_cast<double>(total(1 << 24)) / (1 << 24);
  for (const std::uint64_t n :
       {std::uint64_t{1}, std::uint64_t{1000}, (std::uint64_t{1} << 30) + 7,
        (std::uint64_t{1} << 31) - 1, std::uint64_t{1} << 31, (std::uint64_t{1} << 32) + 1,
        std::uint64_t{1} << 33, std::uint64_t{1} << 40}) {
    const std::uint64_t bytes = total(n);
    const WireBytes w = codec.wire_bytes(static_cast<std::size_t>(n));
    expect(bytes > 0, "wire_bytes is empty");
    expect(bytes <= 16 * n + 64, "more than 16 bytes a number: a product wrapped round");
    expect(total(n - 1) <= bytes && bytes <= total(n + 1), "wire_bytes is not monotone");
    // Two halves may share a scale or a byte, or need one byte more.
    expect(2 * total(n) + 1 >= total(2 * n),
           "twice the numbers need more than twice the bytes");
    s.at("n = " + std::to_string(n));
    if (n >= (1 << 30) && traits.fixed_rate) {
      expect(static_cast<double>(bytes) >= 0.99 * rate * static_cast<double>(n),
             "fewer bytes a number than at 2^24: a product wrapped round");
    }
    if (traits.exact) {
      expect(w.exact == bytes, "an exact codec has bytes that are not booked as exact");
    } else {
      expect(w.exact == 0, "a codec that is not exact books exact bytes");
      expect(w.payload + w.padding > 0, "neither payload nor padding");
    }
  }
  for (const std::size_t n : s.sizes()) {
    expect(total(n) <= total(n + 1), "wire_bytes is not monotone");
  }
}

void writes_what_it_reports(Subject& s) {
  const Codec& codec = s.codec();
  s.for_each_input([&](const Numbers& x) {
    const ConstView v = x.view();
    const std::size_t size = codec.max_wire_size(v.n);
    Bytes a(size + 8, std::byte{0x00}), b(size + 8, kCanary);
    const std::size_t used = call_encode(codec, v, context(), std::span(a).first(size));
    expect(call_encode(codec, v, context(), std::span(b).first(size)) == used,
           "two encodes of the same report different sizes");
    expect(used <= size, "encode reports more than wire_bytes");
    expect(used == size || !codec.traits().fixed_rate,
           "encode of a fixed rate reports fewer bytes than wire_bytes");
    const auto end = static_cast<std::ptrdiff_t>(used);
    expect(std::equal(a.begin(), a.begin() + end, b.begin()),
           "encode leaves bytes of the wire as they were");
    for (std::size_t i = size; i < size + 8; ++i) {
      expect(a[i] == std::byte{0x00} && b[i] == kCanary, "encode writes past its wire");
    }
  });
}

void instruction_sets_agree(Subject& s) {
  const Codec& codec = s.codec();
  s.for_each_input([&](const Numbers& x) {
    const ConstView v = x.view();
    Bytes wire, hop_wire, sums, reduced;
    for (const std::string& target : simd_targets()) {
      const OnTarget forced(target);
      const Bytes bytes = encode(codec, v);
      const Bytes in_hop = encode(codec, v, hop_context());
      const Bytes all = decoded_bytes(codec, bytes, v.dtype, v.n);
      const Bytes out = reduced_bytes(codec, bytes, v.n);
      if (target == "scalar") {
        wire = bytes;
        hop_wire = in_hop;
        sums = all;
        reduced = out;
      }
      const auto differs = [&](const char* what) {
        return [&target, what] { return target + " differs from scalar: " + what; };
      };
      expect(bytes == wire && in_hop == hop_wire, differs("encode"));
      expect(all == sums, differs("decode, decode_sum or decode_add"));
      expect(out == reduced, differs("reduce_encode"));
    }
  });
}

void any_bytes_decode(Subject& s) {
  const Codec& codec = s.codec();
  const Philox random({.purpose = Purpose::kTest, .tensor = 77});
  for (const std::size_t n : s.sizes()) {
    Bytes wire(codec.max_wire_size(n));
    for (std::size_t i = 0; i < wire.size(); ++i) {
      wire[i] = static_cast<std::byte>(random.word(i));
    }
    for (const Dtype d : kDtypes) {
      s.at(std::string(name(d)) + ", n = " + std::to_string(n) + ", random bytes");
      Bytes scalar;
      for (const std::string& target : simd_targets()) {
        const OnTarget forced(target);
        const Bytes out = decode_guarded(codec, wire, d, n);
        if (target == "scalar") scalar = out;
        expect(out == scalar, [&] { return target + " differs from scalar"; });
      }
    }
  }
}

void needs_no_alignment(Subject& s) {
  const Codec& codec = s.codec();
  const std::size_t n = 3 * std::min<std::size_t>(s.traits().block, 5000) + 5;
  const auto x = make_data("normal", n);
  const Bytes wire = encode(codec, view(x));
  const auto y = decode(codec, wire, n);
  for (std::size_t shift = 1; shift < 4; ++shift) {
    s.at("n = " + std::to_string(n) + ", " + std::to_string(shift) + " bytes off");
    Bytes moved(codec.max_wire_size(n) + shift);
    Numbers in(Dtype::kF32, n, shift), out(Dtype::kF32, n, shift);
    convert(view(x), in.view());
    const auto room = std::span(moved).subspan(shift);
    const std::size_t used = call_encode(codec, in.view(), context(), room);
    const auto at = room.first(used);
    expect(used == wire.size() && std::equal(at.begin(), at.end(), wire.begin()),
           "encode gives other bytes");
    call_decode(codec, at, context(), out.view());
    expect(same_bits(out.floats(), y), "decode gives other numbers");
  }
}

void short_wires_are_refused(Subject& s) {
  const Codec& codec = s.codec();
  std::vector<float> x(100, 1.0F);
  Bytes wire(codec.max_wire_size(100));
  const auto cut = std::span(wire).first(wire.size() - 1);
  s.at("n = 100, one byte too few");
  expect(refuses([&] { call_encode(codec, view(x), context(), cut); }), "encode takes it");
  expect(refuses([&] { call_decode_sum(codec, {}, 1, context(), mut_view(x)); }),
         "decode_sum takes no source at all");
  if (!s.traits().fixed_rate) {
    const Bytes sent = encode(codec, view(x));
    for (std::size_t size = 0; size < sent.size(); ++size) {
      s.at("n = 100, " + std::to_string(size) + " of " + std::to_string(sent.size()) +
           " bytes");
      // A copy of that size, so that AddressSanitizer sees a read past it.
      const Bytes part(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(size));
      decode_guarded(codec, part, Dtype::kF32, x.size());
    }
    return;
  }
  expect(refuses([&] { call_decode(codec, cut, context(), mut_view(x)); }), "decode takes it");
  expect(refuses([&] { codec.decode_add(cut, x); }), "decode_add takes it");
  const std::vector<std::span<const std::byte>> wires{wire, cut};
  expect(refuses([&] { call_decode_sum(codec, wires, 1, context(), mut_view(x)); }),
         "decode_sum takes it");
}

}  // namespace zeropp::quant::contract
