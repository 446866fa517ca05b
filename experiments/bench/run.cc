// One row: buffers, the first call and its check, timed calls, what they sent.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>

#include "experiments/bench/bench.h"
#include "hierarchy/collectives.h"
#include "hierarchy/transport/mpi.h"
#include "hierarchy/transport/mpi_peer.h"
#include "hierarchy/transport/virtual.h"
#include "quant/convert.h"
#include "quant/registry.h"

namespace zeropp::experiments {
namespace {

using quant::Dtype;
using quant::Tensor;
using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::micro>(Clock::now() - since).count();
}

// ---- Numbers that are known beforehand. -----------------------------------------------------

std::uint64_t mixed(std::uint64_t x) {  // splitmix64, Steele et al., 2014.
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// Exact rows: x(r, i) = N (b(i) + d(r)), small integers, so that every partial mean is one and
/// the mean is N b(i) + sum of d. Lossy rows: sums of uniforms, nearly normal.
class Numbers {
 public:
  Numbers(bool exact, int ranks) : exact_(exact), ranks_(ranks) {
    for (int r = 0; r < ranks; ++r) drift_ += d(r);
  }
  double at(int rank, std::uint64_t i) const {
    if (exact_) return ranks_ * (b(i) + d(rank));
    const std::uint64_t w = mixed(i * 65537 + static_cast<std::uint64_t>(rank) + 1);
    const auto part = [&](int k) { return static_cast<double>(w >> (16 * k) & 0xFFFF); };
    return (part(0) + part(1) + part(2) + part(3)) / 32768 - 4;
  }
  double mean(std::uint64_t i) const {
    if (exact_) return ranks_ * b(i) + drift_;
    double sum = 0;
    for (int r = 0; r < ranks_; ++r) sum += at(r, i);
    return sum / ranks_;
  }
  /// The dtype holds all the integers.
  bool holds(Dtype dtype) const {
    const int bits = dtype == Dtype::kF32 ? 24 : dtype == Dtype::kF16 ? 11 : 8;
    return 5 * ranks_ <= 1 << bits;
  }

 private:
  static double b(std::uint64_t i) {
    return static_cast<double>(i * 0x9E3779B97F4A7C15ULL >> 61) - 4;
  }
  static double d(int rank) { return rank % 3 - 1; }
  bool exact_;
  int ranks_;
  double drift_ = 0;
};

// ---- One rank. ------------------------------------------------------------------------------

/// What ranks tell rank 0 of a row; doubles, so that one gather of scalars carries them.
struct Told {
  double sent = 0, sent_out = 0, codec_us = 0, wrong = 0, error = 0, energy = 0;
};
constexpr std::size_t kTold = sizeof(Told) / sizeof(double);

class RankBench {
 public:
  RankBench(const BenchOptions& options, hierarchy::Transport& transport)
      : options_(options), comm_{.transport = transport}, ranks_(transport.size()) {}

  /// All ranks; the row is whole on rank 0.
  BenchRow run(const BenchCase& c) {
    prepare(c);
    BenchRow row{.what = c};
    row.iterations = options_.iterations;
    Told told = first_call();
    if (comm_.rank() == 0 && codec_) measure_codec(row);
    row.out_of_place = timed();
    if (c.op == BenchOp::kAllReduce) {
      in_place_ = true;
      row.in_place = timed();
      in_place_ = false;
    }
    collect(told, row);
    return row;
  }

 private:
  void prepare(const BenchCase& c) {
    case_ = c;
    codec_ = c.codec == "exact" ? nullptr : quant::make_codec(c.codec, c.dtype);
    levels_.assign(static_cast<std::size_t>(comm_.transport.topology().levels()), codec_.get());
    const bool gathers = c.op == BenchOp::kAllGather || c.op == BenchOp::kMpiAllGather;
    const bool scatters = c.op == BenchOp::kReduceScatter;
    const std::uint64_t share = c.count / static_cast<std::uint64_t>(ranks_);
    in_ = Tensor(nullptr, quant::MemoryKind::kHost, c.dtype, gathers ? share : c.count);
    out_ = Tensor(nullptr, quant::MemoryKind::kHost, c.dtype, scatters ? share : c.count);
    numbers_ = std::make_unique<Numbers>(codec_ == nullptr, ranks_);
    first_ = gathers ? share * static_cast<std::uint64_t>(comm_.rank()) : 0;
    std::vector<float> piece(4096);
    for (std::size_t i = 0; i < in_.size(); i += piece.size()) {
      const std::size_t n = std::min(piece.size(), in_.size() - i);
      for (std::size_t j = 0; j < n; ++j) {
        piece[j] = static_cast<float>(numbers_->at(comm_.rank(), first_ + i + j));
      }
      quant::convert(quant::view(std::span(piece).first(n)), in_.view().slice(i, n));
    }
    out_.zero();
  }

  void call() {
    const hierarchy::CallOptions o{.algorithm = case_.algorithm};
    const hierarchy::ReduceOptions reduce{.wire = case_.dtype};
    const auto codecs = codec_ ? std::span<const quant::Codec* const>(levels_)
                               : std::span<const quant::Codec* const>();
    const hierarchy::ReduceTensor tensor{0, case_.count, in_place_ ? out_.view() : in_.view(),
                                         out_.view(), codecs};
    switch (case_.op) {
      case BenchOp::kAllReduce:
        return all_reduce(comm_, o, reduce, {&tensor, 1});
      case BenchOp::kReduceScatter:
        return reduce_scatter(comm_, o, reduce, {&tensor, 1});
      case BenchOp::kAllGather: {
        const hierarchy::GatherTensor gather{0, case_.count, in_.view(), out_.view(),
                                             codec_.get()};
        return all_gather(comm_, o, {&gather, 1});
      }
      case BenchOp::kAllToAll:
        return all_to_all(comm_, o,
                          {.in = in_.view(),
                           .out = out_.view(),
                           .n = case_.count / static_cast<std::uint64_t>(ranks_),
                           .codec = codec_.get()});
      case BenchOp::kBroadcast:
        if (comm_.rank() == 0) quant::convert(in_.view(), out_.view());
        return broadcast(comm_, o, 0, out_.view(), codec_.get());
      case BenchOp::kBarrier:
        return comm_.transport.barrier();
      case BenchOp::kMpiAllReduce:
        return hierarchy::mpi_peer_all_reduce({in_.f32(), in_.size()},
                                              {out_.f32(), out_.size()});
      case BenchOp::kMpiAllGather:
        return hierarchy::mpi_peer_all_gather({in_.f32(), in_.size()},
                                              {out_.f32(), out_.size()});
    }
  }

  /// What element i of this rank's result ought to be.
  double wanted(std::uint64_t i) const {
    const std::uint64_t share = case_.count / static_cast<std::uint64_t>(ranks_);
    const int owner = static_cast<int>(i / std::max<std::uint64_t>(share, 1));
    switch (case_.op) {
      case BenchOp::kReduceScatter:
        return numbers_->mean(share * static_cast<std::uint64_t>(comm_.rank()) + i);
      case BenchOp::kAllGather:
      case BenchOp::kMpiAllGather:
        return numbers_->at(owner, i);
      case BenchOp::kAllToAll:
        return numbers_->at(owner,
                            share * static_cast<std::uint64_t>(comm_.rank()) + i % share);
      case BenchOp::kBroadcast:
        return numbers_->at(0, i);
      case BenchOp::kMpiAllReduce:
        return ranks_ * numbers_->mean(i);
      default:
        return numbers_->mean(i);
    }
  }

  Told first_call() {
    Told told;
    comm_.transport.barrier();
    const hierarchy::Ledger before = comm_.transport.ledger();
    const double codec = comm_.codec_seconds;
    call();
    told.codec_us = (comm_.codec_seconds - codec) * 1e6;
    const hierarchy::Ledger sent = comm_.transport.ledger().since(before);
    for (int link = 0; link < comm_.transport.topology().levels(); ++link) {
      const auto bytes = static_cast<double>(sent.sent_on(link, true).bytes.total());
      told.sent += bytes;
      if (link > 0) told.sent_out += bytes;
    }
    if (options_.check) check(told);
    return told;
  }

  void check(Told& told) const {
    constexpr std::size_t kLossy = 65536;  // Elements of a rank that an NMSE is taken over.
    const std::size_t n = codec_ ? std::min(kLossy, out_.size()) : out_.size();
    std::vector<float> piece(4096);
    for (std::size_t i = 0; i < n; i += piece.size()) {
      const std::size_t m = std::min(piece.size(), n - i);
      quant::convert(out_.view().slice(i, m), quant::mut_view(std::span(piece).first(m)));
      for (std::size_t j = 0; j < m; ++j) {
        const double want = wanted(i + j), error = piece[j] - want;
        told.wrong += piece[j] == static_cast<float>(want) ? 0 : 1;
        told.error += error * error;
        told.energy += want * want;
      }
    }
  }

  /// Encode and decode of this rank's view, alone.
  void measure_codec(BenchRow& row) const {
    quant::Buffer wire(nullptr, quant::MemoryKind::kHost, codec_->max_wire_size(in_.size()));
    Tensor back(nullptr, quant::MemoryKind::kHost, case_.dtype, in_.size());
    std::vector<double> encode, decode;
    for (int k = 0; k < 5; ++k) {
      auto start = Clock::now();
      const std::size_t bytes = codec_->encode(in_.view(), {}, wire.span());
      encode.push_back(microseconds(start));
      start = Clock::now();
      codec_->decode(wire.span().first(bytes), back.view());
      decode.push_back(microseconds(start));
    }
    std::sort(encode.begin(), encode.end());
    std::sort(decode.begin(), decode.end());
    row.encode_us = encode[2];
    row.decode_us = decode[2];
  }

  /// Ranks that share a worker leave a barrier one after the other, so the clock starts between
  /// two of them.
  double group(int calls) {
    comm_.transport.barrier();
    const auto start = Clock::now();
    comm_.transport.barrier();
    for (int k = 0; k < calls; ++k) call();
    comm_.transport.barrier();
    return microseconds(start) / calls;
  }

  BenchTime timed() {
    const int groups = std::min(5, options_.iterations);
    if (options_.warmup > 0) group(options_.warmup);
    std::vector<double> each;
    for (int g = 0; g < groups; ++g) {
      const int left = options_.iterations - options_.iterations / groups * g;
      each.push_back(group(g + 1 < groups ? options_.iterations / groups : left));
    }
    std::sort(each.begin(), each.end());
    const auto quantile = [&](double q) {
      return each[static_cast<std::size_t>(q * static_cast<double>(each.size() - 1))];
    };
    return {.us = quantile(0.5), .spread = (quantile(0.75) - quantile(0.25)) / 2};
  }

  void collect(const Told& told, BenchRow& row) {
    std::vector<Told> all(static_cast<std::size_t>(ranks_));
    hierarchy::gather_scalars(comm_, hierarchy::Phase::kOther, quant::Role::kControl,
                              {reinterpret_cast<const double*>(&told), kTold},
                              {reinterpret_cast<double*>(all.data()), kTold * all.size()});
    if (comm_.rank() != 0) return;
    const int node = comm_.transport.topology().group_size(0);
    Told sum;
    double busiest = 0;
    for (int first = 0; first < ranks_; first += node) {
      double out = 0;
      for (int r = first; r < first + node; ++r) {
        const Told& t = all[static_cast<std::size_t>(r)];
        out += t.sent_out;
        sum.sent += t.sent;
        sum.wrong += t.wrong;
        sum.error += t.error;
        sum.energy += t.energy;
        row.codec_us = std::max(row.codec_us, t.codec_us);
      }
      busiest = std::max(busiest, out);
    }
    row.wire_bytes = static_cast<std::uint64_t>(sum.sent);
    row.xnode_bytes = static_cast<std::uint64_t>(busiest);
    if (!options_.check || case_.op == BenchOp::kBarrier) return;
    if (!codec_ && numbers_->holds(case_.dtype)) {
      row.wrong = static_cast<std::uint64_t>(sum.wrong);
    }
    row.nmse = sum.energy > 0 ? sum.error / sum.energy : 0;
  }

  const BenchOptions& options_;
  hierarchy::Comm comm_;
  int ranks_;
  BenchCase case_;
  quant::CodecPtr codec_;
  std::vector<const quant::Codec*> levels_;
  Tensor in_, out_;
  std::unique_ptr<Numbers> numbers_;
  std::uint64_t first_ = 0;  ///< in_[0]'s place in the whole.
  bool in_place_ = false;
};

}  // namespace

std::vector<BenchRow> run_bench(const BenchOptions& options,
                                const std::vector<BenchCase>& cases,
                                const std::function<void(const BenchRow&)>& on_row) {
  std::vector<BenchRow> rows;
  const auto body = [&](hierarchy::Transport& transport) {
    RankBench bench(options, transport);
    for (const BenchCase& c : cases) {
      BenchRow row = bench.run(c);
      if (transport.rank() != 0) continue;
      if (on_row) on_row(row);
      rows.push_back(std::move(row));
    }
  };
  constexpr std::chrono::milliseconds kTimeout{600'000};
  if (options.transport == "mpi") {
    hierarchy::run_mpi(bench_topology(options), {.timeout = kTimeout}, body);
  } else {
    hierarchy::run_virtual(bench_topology(options),
                           {.workers = options.workers, .timeout = kTimeout}, body);
  }
  return rows;
}

}  // namespace zeropp::experiments
