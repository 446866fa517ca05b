#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hierarchy/collectives.h"

/// Private to the collectives: what all algorithms share. A *piece* is one non-empty
/// (tensor, world chunk), the span of a codec; empty chunks have no bytes anywhere.
namespace zeropp::hierarchy::detail {

/// The ranks that exchange in one hop m -> m_next: those that agree mod m inside a block of
/// m_next ranks. Member j is rank first + j * stride.
struct HopGroup {
  int first = 0;
  int stride = 1;
  int size = 1;
  int index = 0;  ///< Of the calling rank.
  int member(int j) const { return first + j * stride; }
};
HopGroup hop_group(int rank, int m, int m_next);

/// A call's options against the topology, checked: coarse | fine | N and an algorithm that the
/// host can run (UsageError otherwise).
struct CallPlan {
  int coarse = 1;
  int fine = 1;
  std::vector<int> chain;  ///< hop_chain: {coarse, ..., fine}.
  CallInfo call;           ///< hop = 0.
  int hops() const { return static_cast<int>(chain.size()) - 1; }
};
CallPlan plan_call(const Comm& comm, const CallOptions& options, Collective collective);

/// Collects what all ranks of a call must agree on (CallContent).
class ContentHash {
 public:
  ContentHash(const CallPlan& plan, quant::Dtype dtype) {
    content_.coarse = plan.coarse;
    content_.fine = plan.fine;
    content_.dtype = dtype;
  }
  void add(std::uint32_t tensor, std::size_t numel, const quant::Codec* codec);
  const CallContent& content() const { return content_; }

 private:
  CallContent content_;
};

/// all_to_all and broadcast know the world group alone: UsageError for another one.
CallPlan plan_world_call(const Comm& comm, const CallOptions& options, Collective collective);

/// UsageError unless `found` elements were given where the owner map needs `expected`.
void check_elems(const char* what, std::uint32_t tensor, std::size_t expected,
                 std::size_t found);

/// UsageError: a gather without codec moves elements as they are, so both ends have one dtype.
void check_exact_dtypes(const quant::Codec* codec, quant::Dtype in, quant::Dtype out);

/// The codec (may be null) marks differences to a reference.
bool is_difference(const quant::Codec* codec);
/// UsageError for such a codec in a collective that adds to no reference.
void refuse_difference(const quant::Codec* codec, Collective collective);

/// The cast to a dtype: what "exact in the wire dtype" sends.
const quant::Codec& cast_codec(quant::Dtype dtype);
/// True if encoding elements of that dtype with the codec copies their bytes.
bool is_copy(const quant::Codec& codec, quant::Dtype dtype);

quant::CodecContext codec_context(const CallOptions& options, std::uint32_t tensor, int sender,
                                  int part, int level);

/// Adds the time until the end of the scope to comm.codec_seconds.
class CodecTimer {
 public:
  explicit CodecTimer(Comm& comm, bool on = true) : comm_(comm), on_(on) {
    if (on_) begin_ = std::chrono::steady_clock::now();
  }
  ~CodecTimer() {
    if (!on_) return;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    comm_.codec_seconds += passed.count();
  }
  CodecTimer(const CodecTimer&) = delete;
  CodecTimer& operator=(const CodecTimer&) = delete;

 private:
  Comm& comm_;
  bool on_;
  std::chrono::steady_clock::time_point begin_;
};

struct Piece {
  int chunk = 0;
  std::size_t n = 0;
};
/// Where a non-empty chunk begins inside a shard with that modulus: all chunks before it are
/// full.
inline std::size_t local_offset(const ChunkMap& map, int modulus, int chunk) {
  return static_cast<std::size_t>(chunk / modulus) * map.chunk_elems();
}
/// fn(Piece) for the pieces with chunk mod modulus == residue, ascending.
template <class Fn>
void for_pieces(const ChunkMap& map, int modulus, int residue, Fn&& fn) {
  for (int chunk = residue; chunk < map.world; chunk += modulus) {
    const std::size_t n = map.size(chunk);
    if (n == 0) return;  // Only late chunks are short or empty.
    fn(Piece{chunk, n});
  }
}

/// How the pieces of one tensor look on the wire in one hop: raw elements (codec null) or
/// encoded. Variable-rate codecs put a frame, their size as u64, before the bytes (booked as
/// `scale`).
class PieceWire {
 public:
  PieceWire() = default;
  PieceWire(const ChunkMap& map, const quant::Codec* codec, quant::Dtype raw);

  const quant::Codec* codec() const { return codec_; }
  bool framed() const { return framed_; }
  /// Bytes of a piece with frame; an upper bound if framed. n is a chunk size of the tensor.
  const quant::WireBytes& bytes(std::size_t n) const { return n == full_n_ ? full_ : tail_; }
  std::size_t size(std::size_t n) const { return n == full_n_ ? full_size_ : tail_size_; }

  /// Bytes of the pieces of a shard, with their frames; an upper bound if framed.
  quant::WireBytes shard_bytes(std::size_t full_pieces, bool short_piece) const;

  /// Writes a piece with its frame; returns the bytes written and books them.
  std::size_t encode(quant::ConstView x, const quant::CodecContext& context,
                     std::span<std::byte> wire, quant::WireBytes& booked) const;
  /// The same around an encoder of the caller's: write(span without frame) -> bytes.
  template <class Write>
  std::size_t put(std::size_t n, std::span<std::byte> wire, quant::WireBytes& booked,
                  Write&& write) const {
    if (!framed_) {
      booked += bytes(n);
      const auto place = wire.first(size(n));
      write(place);
      return place.size();
    }
    const std::size_t written = write(wire.subspan(kFrame));
    return close_frame(n, written, wire, booked);
  }
  /// The piece's bytes (without frame) at the front of `rest`, which is advanced past them.
  /// TransportError if they do not fit.
  std::span<const std::byte> take(std::size_t n, std::span<const std::byte>& rest) const;
  /// What a piece of that many bytes without frame is booked as.
  quant::WireBytes actual(std::size_t n, std::size_t without_frame) const;

 private:
  static constexpr std::size_t kFrame = sizeof(std::uint64_t);
  std::size_t close_frame(std::size_t n, std::size_t written, std::span<std::byte> wire,
                          quant::WireBytes& booked) const;

  const quant::Codec* codec_ = nullptr;
  bool framed_ = false;
  std::size_t full_n_ = 0;
  std::size_t full_size_ = 0;
  std::size_t tail_size_ = 0;
  quant::WireBytes full_;
  quant::WireBytes tail_;
};

/// The messages of one exchange, collected and then started. Zero-byte messages are left out.
class Exchange {
 public:
  void send(int peer, std::span<const std::byte> data, const quant::WireBytes& bytes) {
    if (!data.empty()) sends_.push_back({peer, data, bytes});
  }
  /// Returns the index for Pending::received, or -1 if nothing will come.
  int receive(int peer, std::byte* into, std::size_t bytes, bool variable = false) {
    if (bytes == 0) return -1;
    receives_.push_back({peer, into, bytes, variable});
    return static_cast<int>(receives_.size()) - 1;
  }
  /// Started even when empty: sequence numbers stay equal on all ranks.
  Pending start(Comm& comm, const CallInfo& call) const {
    return comm.transport.exchange(call, sends_, receives_);
  }

 private:
  std::vector<SendOp> sends_;
  std::vector<RecvOp> receives_;
};
inline std::span<const std::byte> received(const Pending& pending, int index) {
  if (index < 0) return {};
  return pending.received(static_cast<std::size_t>(index));
}

}  // namespace zeropp::hierarchy::detail
