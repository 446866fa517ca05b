#include "hierarchy/collectives/common.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "quant/error.h"
#include "quant/registry.h"

namespace zeropp::hierarchy::detail {

using quant::WireBytes;

HopGroup hop_group(int rank, int m, int m_next) {
  const int block = rank / m_next * m_next;
  const int residue = rank % m;
  return {.first = block + residue,
          .stride = m,
          .size = m_next / m,
          .index = (rank - block - residue) / m};
}

CallPlan plan_call(const Comm& comm, const CallOptions& options, Collective collective) {
  if (options.algorithm == Algorithm::kNative) {
    throw UsageError("collectives",
                     "algorithm ring, all_to_all or hierarchical on this transport", "native");
  }
  CallPlan plan;
  plan.coarse = options.coarse;
  plan.fine = options.fine == 0 ? comm.size() : options.fine;
  if (plan.fine < 1 || comm.size() % plan.fine != 0) {
    throw UsageError("collectives",
                     fmt::format("a fine modulus that divides N = {}", comm.size()),
                     std::to_string(plan.fine));
  }
  plan.chain = hop_chain(comm.transport.topology(), options.algorithm, plan.coarse, plan.fine);
  plan.call = {.collective = collective,
               .algorithm = options.algorithm,
               .phase = options.phase,
               .role = options.role};
  return plan;
}

void ContentHash::add(std::uint32_t tensor, std::size_t numel, const quant::Codec* codec) {
  content_.elements += numel;
  if (codec == nullptr) return;
  std::uint32_t h = content_.codecs == 0 ? 2166136261U : content_.codecs;  // FNV-1a.
  const auto mix = [&h](unsigned char byte) { h = (h ^ byte) * 16777619U; };
  for (int shift = 0; shift < 32; shift += 8) mix(static_cast<unsigned char>(tensor >> shift));
  for (const char c : codec->spec()) mix(static_cast<unsigned char>(c));
  content_.codecs = h == 0 ? 1 : h;
}

CallPlan plan_world_call(const Comm& comm, const CallOptions& options, Collective collective) {
  CallPlan plan = plan_call(comm, options, collective);
  if (plan.coarse != 1 || plan.fine != comm.size()) {
    throw UsageError("collectives", fmt::format("the world group in {}", name(collective)),
                     fmt::format("coarse = {}, fine = {}", plan.coarse, plan.fine));
  }
  return plan;
}

void check_elems(const char* what, std::uint32_t tensor, std::size_t expected,
                 std::size_t found) {
  if (expected == found) return;
  throw UsageError("collectives",
                   fmt::format("{} elements in '{}' of tensor {}", expected, what, tensor),
                   std::to_string(found));
}

void check_exact_dtypes(const quant::Codec* codec, quant::Dtype in, quant::Dtype out) {
  if (codec != nullptr || in == out) return;
  throw UsageError("collectives", "one dtype for input and output without codec",
                   fmt::format("{} and {}", quant::name(in), quant::name(out)));
}

bool is_difference(const quant::Codec* codec) {
  return codec != nullptr && codec->traits().difference;
}

void refuse_difference(const quant::Codec* codec, Collective collective) {
  if (!is_difference(codec)) return;
  throw UsageError("collectives",
                   "differences in an all_gather alone: nothing else adds to a reference",
                   fmt::format("'{}' in a {}", codec->spec(), name(collective)));
}

const quant::Codec& cast_codec(quant::Dtype dtype) {
  static const std::array<quant::CodecPtr, 3> casts = {
      quant::make_codec(quant::name(quant::Dtype::kF32)),
      quant::make_codec(quant::name(quant::Dtype::kBF16)),
      quant::make_codec(quant::name(quant::Dtype::kF16))};
  return *casts.at(static_cast<std::size_t>(dtype));
}

bool is_copy(const quant::Codec& codec, quant::Dtype dtype) {
  return &codec == &cast_codec(dtype) || codec.spec() == quant::name(dtype);
}

quant::CodecContext codec_context(const CallOptions& options, std::uint32_t tensor, int sender,
                                  int part, int level) {
  return {.seed = options.seed,
          .role = options.role,
          .tensor = tensor,
          .step = options.step,
          .micro = options.micro,
          .sender = static_cast<std::uint32_t>(sender),
          .part = static_cast<std::uint32_t>(part),
          .level = static_cast<std::uint32_t>(level),
          .state = options.state,
          .underflow = options.underflow};
}

PieceWire::PieceWire(const ChunkMap& map, const quant::Codec* codec, quant::Dtype raw)
    : codec_(codec), framed_(codec != nullptr && !codec->traits().fixed_rate) {
  const auto measure = [&](std::size_t n) {
    if (n == 0) return WireBytes{};
    WireBytes bytes = codec ? codec->wire_bytes(n) : WireBytes{.exact = n * size_of(raw)};
    if (framed_) bytes.scale += kFrame;
    return bytes;
  };
  full_n_ = map.chunk_elems();
  full_ = measure(full_n_);
  if (full_n_ > 0) tail_ = measure(map.numel % full_n_);
  full_size_ = static_cast<std::size_t>(full_.total());
  tail_size_ = static_cast<std::size_t>(tail_.total());
}

WireBytes PieceWire::shard_bytes(std::size_t full_pieces, bool short_piece) const {
  WireBytes bytes{.payload = full_pieces * full_.payload,
                  .scale = full_pieces * full_.scale,
                  .padding = full_pieces * full_.padding,
                  .exact = full_pieces * full_.exact};
  if (short_piece) bytes += tail_;
  return bytes;
}

std::size_t PieceWire::encode(quant::ConstView x, const quant::CodecContext& context,
                              std::span<std::byte> wire, WireBytes& booked) const {
  return put(x.n, wire, booked, [&](std::span<std::byte> place) {
    if (codec_ != nullptr) return codec_->encode(x, context, place);
    std::memcpy(place.data(), x.data, x.bytes());
    return x.bytes();
  });
}

std::size_t PieceWire::close_frame(std::size_t n, std::size_t written,
                                   std::span<std::byte> wire, WireBytes& booked) const {
  const std::uint64_t frame = written;
  std::memcpy(wire.data(), &frame, kFrame);
  booked += actual(n, written);
  return kFrame + written;
}

std::span<const std::byte> PieceWire::take(std::size_t n,
                                           std::span<const std::byte>& rest) const {
  std::size_t bytes = size(n);
  if (framed_) {
    std::uint64_t frame = bytes;  // Too large unless read.
    if (rest.size() >= kFrame) std::memcpy(&frame, rest.data(), kFrame);
    if (frame > bytes - kFrame) {
      throw TransportError(
          fmt::format("frame of {} bytes where at most {} fit", frame, bytes - kFrame));
    }
    bytes = static_cast<std::size_t>(frame);
    rest = rest.subspan(kFrame);
  }
  if (rest.size() < bytes) {
    throw TransportError(
        fmt::format("piece of {} bytes in the last {} of a message", bytes, rest.size()));
  }
  const auto piece = rest.first(bytes);
  rest = rest.subspan(bytes);
  return piece;
}

WireBytes PieceWire::actual(std::size_t n, std::size_t without_frame) const {
  if (!framed_) return bytes(n);
  // The codec says what an upper bound holds; of the bytes really sent, metadata comes first.
  const std::uint64_t metadata =
      std::min<std::uint64_t>(bytes(n).scale - kFrame, without_frame);
  return {.payload = without_frame - metadata, .scale = metadata + kFrame};
}

}  // namespace zeropp::hierarchy::detail
