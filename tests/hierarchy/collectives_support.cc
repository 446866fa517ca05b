#include "tests/hierarchy/collectives_support.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace zeropp::test {
namespace {

using quant::CodecContext;

float rounded(const ReduceProblem& p, float sum) {
  const double ranks = static_cast<double>(p.fine()) / p.options.coarse;
  const double f = p.reduce.predivide;
  const bool divides = f != 0 && ranks != f && p.fine() != p.options.coarse;
  const float result = divides ? sum / static_cast<float>(ranks / f) : sum;
  return quant::round_to(p.out, quant::round_to(p.reduce.wire, result));
}

/// What a rank holds of a chunk at the start, as elements of the input dtype.
Array own(const ReduceProblem& p, int rank, int chunk) {
  const auto [begin, end] = chunk_range(p.numel(), p.world(), chunk);
  const auto& x = p.inputs[static_cast<std::size_t>(rank)];
  return {p.in, std::vector<float>(x.begin() + static_cast<std::ptrdiff_t>(begin),
                                   x.begin() + static_cast<std::ptrdiff_t>(end))};
}

std::vector<float> ring_chunk(const ReduceProblem& p, int owner, int chunk) {
  const int ranks = p.fine() / p.options.coarse;
  const float divisor =
      static_cast<float>(p.reduce.predivide == 0 ? ranks : p.reduce.predivide);
  const int first = owner / p.fine() * p.fine() + owner % p.options.coarse;
  std::vector<float> sum;
  for (int step = 1; step <= ranks; ++step) {
    const int at = (owner - first) / p.options.coarse;
    const int rank = first + (at + step) % ranks * p.options.coarse;
    const std::vector<float> x = own(p, rank, chunk).floats();
    if (step == 1) sum.assign(x.size(), 0.0F);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float term = x[i] / divisor;
      sum[i] = step == 1 ? term : sum[i] + term;
      if (step < ranks) sum[i] = quant::round_to(p.reduce.wire, sum[i]);
    }
  }
  return sum;
}

std::vector<float> hop_chunk(const ReduceProblem& p, int owner, int chunk) {
  const auto chain = oracle_chain(p.topology, p.options.algorithm, p.options.coarse, p.fine());
  const int block = owner / p.fine() * p.fine();
  std::vector<Array> held(static_cast<std::size_t>(p.world()));
  for (int r = block; r < block + p.fine(); ++r) {
    held[static_cast<std::size_t>(r)] = own(p, r, chunk);
  }
  for (std::size_t hop = 0; hop + 1 < chain.size(); ++hop) {
    const int m = chain[hop];
    const int m_next = chain[hop + 1];
    const int level = oracle_level(p.topology, m_next);
    quant::CodecPtr codec;
    if (!p.codecs.empty()) codec = p.codecs[static_cast<std::size_t>(level)];
    if (!codec) codec = quant::make_codec(quant::name(p.reduce.wire));
    const int fan_out = m_next / m;
    double divisor = fan_out;
    if (hop == 0 && p.reduce.predivide != 0) {
      divisor *= p.reduce.predivide / (static_cast<double>(p.fine()) / p.options.coarse);
    }
    for (int group = block; group < block + p.fine(); group += m_next) {
      std::vector<float> sum;
      bool first = true;
      for (int r = group; r < group + m_next; ++r) {
        if (r % m != chunk % m) continue;
        const Array& x = held[static_cast<std::size_t>(r)];
        const CodecContext context{.seed = p.options.seed,
                                   .role = p.options.role,
                                   .tensor = p.tensor,
                                   .step = p.options.step,
                                   .micro = p.options.micro,
                                   .sender = static_cast<std::uint32_t>(r),
                                   .part = static_cast<std::uint32_t>(chunk),
                                   .level = static_cast<std::uint32_t>(level),
                                   .second_hop = m > p.topology.group_size(level - 1),
                                   .group_size = static_cast<std::uint32_t>(fan_out),
                                   .group_index = static_cast<std::uint32_t>((r - group) / m)};
        std::vector<std::byte> wire(codec->max_wire_size(x.size()));
        wire.resize(codec->encode(x.view(), context, wire));
        std::vector<float> term(x.size());
        codec->decode(wire, quant::mut_view(term));
        if (first) sum = term;
        for (std::size_t i = 0; i < sum.size() && !first; ++i) sum[i] += term[i];
        first = false;
      }
      for (float& s : sum) s /= static_cast<float>(divisor);
      for (int r = group; r < group + m_next; ++r) {
        if (r % m_next == chunk % m_next)
          held[static_cast<std::size_t>(r)] = {Dtype::kF32, sum};
      }
    }
  }
  return held[static_cast<std::size_t>(owner)].floats();
}

class NonZeroCodec final : public quant::Codec {
 public:
  const std::string& spec() const override {
    static const std::string text = "non_zero";
    return text;
  }
  quant::CodecTraits traits() const override { return {.fixed_rate = false}; }
  quant::WireBytes wire_bytes(std::size_t n) const override {
    return {.payload = 4 * n, .scale = 4 * n};
  }
  std::size_t encode(quant::ConstView x, const CodecContext&,
                     std::span<std::byte> wire) const override {
    std::vector<float> values(x.n);
    quant::convert(x, quant::mut_view(values));
    std::size_t at = 0;
    for (std::uint32_t i = 0; i < x.n; ++i) {
      if (values[i] == 0) continue;
      std::memcpy(wire.data() + at, &i, 4);
      std::memcpy(wire.data() + at + 4, &values[i], 4);
      at += 8;
    }
    return at;
  }
  void decode(std::span<const std::byte> wire, quant::MutView out) const override {
    std::vector<float> values(out.n);
    for (std::size_t at = 0; at + 8 <= wire.size(); at += 8) {
      std::uint32_t i = 0;
      std::memcpy(&i, wire.data() + at, 4);
      std::memcpy(&values.at(i), wire.data() + at + 4, 4);
    }
    quant::convert(quant::view(values), out);
  }
};

}  // namespace

quant::CodecPtr non_zero_codec() { return std::make_shared<const NonZeroCodec>(); }

float value(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15ULL + a * 0xBF58476D1CE4E5B9ULL + b + 1;
  for (const int shift : {30, 27, 31}) {
    z = (z ^ (z >> shift)) * 0x94D049BB133111EBULL;
  }
  return static_cast<float>(static_cast<double>(z >> 11) * 0x1p-52 - 1.0);
}

std::pair<std::size_t, std::size_t> chunk_range(std::size_t numel, int world, int chunk) {
  const auto n = static_cast<std::size_t>(world);
  const std::size_t size = (numel + n - 1) / n;
  const std::size_t begin = std::min(numel, static_cast<std::size_t>(chunk) * size);
  return {begin, std::min(numel, begin + size)};
}

std::vector<float> cut(const std::vector<float>& whole, int world, int modulus, int rank) {
  std::vector<float> shard;
  for (int chunk = 0; chunk < world; ++chunk) {
    if (chunk % modulus != rank % modulus) continue;
    const auto [begin, end] = chunk_range(whole.size(), world, chunk);
    for (std::size_t i = begin; i < end; ++i) shard.push_back(whole[i]);
  }
  return shard;
}

Codecs make_codecs(const std::vector<std::string>& specs, Dtype wire) {
  Codecs codecs;
  for (const std::string& spec : specs) {
    codecs.push_back(spec.empty() ? nullptr : quant::make_codec(spec, wire));
  }
  return codecs;
}

std::vector<const quant::Codec*> raw(const Codecs& codecs) {
  std::vector<const quant::Codec*> pointers;
  for (const auto& codec : codecs) pointers.push_back(codec.get());
  return pointers;
}

std::vector<int> oracle_chain(const Topology& t, Algorithm a, int coarse, int fine) {
  std::vector<int> chain{coarse};
  for (int m = coarse + 1; m < fine; ++m) {
    const auto& prefixes = t.prefix_sizes();
    const bool named = std::find(prefixes.begin(), prefixes.end(), m) != prefixes.end();
    if (a == Algorithm::kHierarchical && named && m % coarse == 0 && fine % m == 0) {
      chain.push_back(m);
    }
  }
  if (fine != coarse) chain.push_back(fine);
  return chain;
}

int oracle_level(const Topology& t, int ranks) {
  for (int level = 0; level < t.levels(); ++level) {
    if (t.group_size(level) >= ranks) return level;
  }
  return t.levels() - 1;
}

std::vector<float> oracle_chunk(const ReduceProblem& p, int rank, int chunk) {
  const int owner = [&] {  // The rank of the block that ends with the chunk.
    for (int r = rank / p.fine() * p.fine();; ++r) {
      if (r % p.fine() == chunk % p.fine()) return r;
    }
  }();
  const bool ring = p.options.algorithm == Algorithm::kRing && p.fine() != p.options.coarse;
  std::vector<float> result = ring ? ring_chunk(p, owner, chunk) : hop_chunk(p, owner, chunk);
  for (float& x : result) x = rounded(p, x);
  return result;
}

Array oracle_shard(const ReduceProblem& p, int modulus, int rank) {
  std::vector<float> shard;
  for (int chunk = 0; chunk < p.world(); ++chunk) {
    if (chunk % modulus != rank % modulus) continue;
    for (const float x : oracle_chunk(p, rank, chunk)) shard.push_back(x);
  }
  return {p.out, shard};
}

std::vector<double> mean_of_group(const ReduceProblem& p, int rank) {
  std::vector<double> mean(p.numel(), 0.0);
  const int block = rank / p.fine() * p.fine();
  int ranks = 0;
  for (int r = block; r < block + p.fine(); ++r) {
    if (r % p.options.coarse != rank % p.options.coarse) continue;
    ++ranks;
    const auto x = Array(p.in, p.inputs[static_cast<std::size_t>(r)]).floats();
    for (std::size_t i = 0; i < x.size(); ++i) mean[i] += static_cast<double>(x[i]);
  }
  for (double& m : mean) m /= ranks;
  return mean;
}

ReduceProblem problem(const Shape& s, Algorithm algorithm, std::size_t numel,
                      const std::vector<std::string>& codecs, Dtype wire) {
  ReduceProblem p{.topology = topology(s.fan_outs),
                  .options = {.algorithm = algorithm,
                              .role = quant::Role::kGradient,
                              .coarse = s.coarse,
                              .fine = s.fine,
                              .seed = 11,
                              .step = 3,
                              .micro = 1},
                  .reduce = {.wire = wire},
                  .tensor = 5,
                  .inputs = {},
                  .codecs = make_codecs(codecs, wire)};
  for (int rank = 0; rank < p.world(); ++rank) {
    std::vector<float> x(numel);
    for (std::size_t i = 0; i < numel; ++i)
      x[i] = value(1, static_cast<std::uint64_t>(rank), i);
    p.inputs.push_back(x);
  }
  return p;
}

std::vector<Array> run(Comm& comm, Call call, const std::vector<ReduceProblem>& problems) {
  std::vector<Array> shards;
  std::vector<Array> outs;
  std::vector<std::vector<const quant::Codec*>> codecs;
  std::vector<hierarchy::ReduceTensor> tensors;
  for (const ReduceProblem& p : problems) {
    const int modulus = call == Call::kAllReduce ? p.options.coarse : p.fine();
    shards.push_back(p.shard(comm.rank()));
    outs.emplace_back(p.out, cut(p.inputs[0], comm.size(), modulus, comm.rank()).size());
    codecs.push_back(raw(p.codecs));
  }
  for (std::size_t i = 0; i < problems.size(); ++i) {
    tensors.push_back(
        {problems[i].tensor, problems[i].numel(), shards[i].view(), outs[i].mut(), codecs[i]});
  }
  (call == Call::kAllReduce ? hierarchy::all_reduce : hierarchy::reduce_scatter)(
      comm, problems[0].options, problems[0].reduce, tensors);
  return outs;
}
std::vector<std::vector<Array>> run(Call call, const std::vector<ReduceProblem>& problems,
                                    int workers) {
  return on_ranks(
      problems[0].topology, [&](Comm& comm) { return run(comm, call, problems); }, workers);
}

std::string text(const ReduceProblem& p, int rank) {
  std::string codecs;
  for (const auto& codec : p.codecs) codecs += (codec ? codec->spec() : "-") + " ";
  return fmt::format("{} N={} {}->{} numel={} wire={} in={} out={} f={} codecs {}rank {}",
                     name(p.options.algorithm), p.world(), p.options.coarse, p.fine(),
                     p.numel(), quant::name(p.reduce.wire), quant::name(p.in),
                     quant::name(p.out), p.reduce.predivide, codecs, rank);
}

std::vector<std::vector<Array>> on_ranks(const Topology& t,
                                         const std::function<std::vector<Array>(Comm&)>& body,
                                         int workers) {
  const std::function<std::vector<Array>(hierarchy::Transport&)> run =
      [&](hierarchy::Transport& transport) {
        Comm comm{.transport = transport};
        return body(comm);
      };
  return spawn(t, {.workers = workers}, run);
}

}  // namespace zeropp::test
