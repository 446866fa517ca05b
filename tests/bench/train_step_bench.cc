// One training step (forward, backward, AdamW) of a GPT of 10.8 M parameters on one rank, and
// beside it in the same iteration its matrix products alone. Counters:
//   tok/s            tokens a second of wall time, of all ranks together
//   tok/cpu_s        tokens a second of one rank's CPU time
//   bound_tok/cpu_s  the same if nothing but the products took time
//   of_bound         their ratio
// `threads:2` is two ranks, each on its own thread, without communication.

#include <benchmark/benchmark.h>

#include <chrono>
#include <ctime>
#include <memory>
#include <vector>

#include "quant/convert.h"
#include "zero/model.h"
#include "zero/ops/ops.h"
#include "zero/optimizer.h"

namespace zeropp::zero {
namespace {

using quant::Dtype;
using quant::MemoryKind;
using quant::Tensor;

constexpr int kBatch = 4, kSeq = 256, kTokens = kBatch * kSeq;

GptConfig config(Dtype dtype) {
  GptConfig c;
  c.layers = 6;
  c.width = 384;
  c.heads = 6;
  c.context = kSeq;
  c.dtype = dtype;
  return c;
}

float pseudo_random(std::size_t i) {
  const auto x = static_cast<std::uint32_t>(i) * 2654435761U;
  return static_cast<float>((x ^ (x >> 15U)) >> 8U) * 0x1p-24F - 0.5F;
}

Tensor random_tensor(Dtype dtype, std::size_t n, float scale) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = scale * pseudo_random(i);
  Tensor t(nullptr, MemoryKind::kParams, dtype, n);
  convert(quant::view(x), t.view());
  return t;
}

/// A rank with everything local: fp32 master, m and v, parameters and gradients in the dtype.
class Rank : public WeightSource, public GradSink {
 public:
  explicit Rank(Dtype dtype) : model_(make_gpt(config(dtype))), run_(model_->start(nullptr)) {
    for (const TensorSpec& t : model_->tensors()) {
      State s;
      s.master = random_tensor(Dtype::kF32, t.numel, t.shape.size() > 1 ? 0.07F : 1.0F);
      s.m = random_tensor(Dtype::kF32, t.numel, 0);
      s.v = random_tensor(Dtype::kF32, t.numel, 0);
      s.param = Tensor(nullptr, MemoryKind::kParams, dtype, t.numel);
      s.grad = Tensor(nullptr, MemoryKind::kGrads, dtype, t.numel);
      convert(s.master.view(), s.param.view());
      state_.push_back(std::move(s));
    }
    for (int i = 0; i < kTokens; ++i) tokens_.push_back((i * 31 + i / 7) % 256);
    targets_.assign(tokens_.begin() + 1, tokens_.end());
    targets_.push_back(0);
  }

  double step() {
    run_->begin({tokens_, targets_, kBatch, kSeq}, true, 1.0F);
    for (int u = 0; u < model_->units(); ++u) run_->forward(u, *this);
    const double loss = run_->loss();
    for (int u = model_->units() - 1; u >= 0; --u) run_->backward(u, *this, *this);
    ++t_;
    for (State& s : state_) {
      optimizer_update(OptimizerConfig{}, {.master = s.master.f32(),
                                           .m = s.m.f32(),
                                           .v = s.v.f32(),
                                           .grad = s.grad.view(),
                                           .lr = 1e-3,
                                           .t = t_});
      convert(s.master.view(), s.param.view());
    }
    return loss;
  }

  quant::ConstView weight(std::uint32_t t) override { return state_[t].param.view(); }
  quant::MutView grad(std::uint32_t t) override { return state_[t].grad.view(); }
  void done(std::uint32_t) override {}

 private:
  struct State {
    Tensor master, m, v, param, grad;
  };
  std::unique_ptr<Model> model_;
  std::unique_ptr<ModelRun> run_;
  std::vector<State> state_;
  std::vector<std::int32_t> tokens_, targets_;
  std::uint64_t t_ = 0;
};

/// The step's products, of the same shapes, strides and dtypes, on shared operands.
class Products {
 public:
  explicit Products(Dtype dtype) : ctx_(nullptr), dtype_(dtype) {
    const GptConfig c = config(dtype);
    const std::int64_t w = c.width, head_dim = w / c.heads;
    for (int layer = 0; layer < c.layers; ++layer) {
      linear(w, 3 * w);
      linear(w, w);
      linear(w, 4 * w);
      linear(4 * w, w);
      for (int i = 0; i < kBatch * c.heads; ++i) attention(head_dim, 3 * w);
    }
    add({kTokens, w, c.vocab}, {w, false}, {w, true}, c.vocab, Dtype::kF32);
    add({c.vocab, kTokens, w}, {c.vocab, true}, {w, false}, w, Dtype::kF32);
    add({kTokens, c.vocab, w}, {c.vocab, false}, {w, false}, w, dtype);
    a_ = random_tensor(dtype, std::size_t{kTokens} * 1536, 1);
    b_ = random_tensor(dtype, std::size_t{kTokens} * 1536, 1);
    out_ = Tensor(nullptr, MemoryKind::kWorkspace, Dtype::kF32, std::size_t{kTokens} * 1536);
  }

  void run() {
    for (ops::MatmulArgs& p : products_) {
      p.a.data = a_.view().data;
      p.b.data = b_.view().data;
      p.c.data = out_.view().data;
      matmul(ctx_, p);
    }
  }

 private:
  struct Shape {
    std::int64_t m, k, n;
  };
  struct Storage {
    std::int64_t ld;
    bool transposed;
  };
  void add(Shape s, Storage a, Storage b, std::int64_t ldc, Dtype out) {
    products_.push_back({.a = {nullptr, dtype_, s.m, s.k, a.ld, a.transposed},
                         .b = {nullptr, dtype_, s.k, s.n, b.ld, b.transposed},
                         .c = {nullptr, out, s.m, s.n, ldc}});
  }
  void linear(std::int64_t in, std::int64_t out) {
    add({kTokens, in, out}, {in, false}, {out, false}, out, dtype_);
    add({in, kTokens, out}, {in, true}, {out, false}, out, dtype_);
    add({kTokens, out, in}, {out, false}, {out, true}, in, dtype_);
  }
  /// One head: two products forward and five backward for each tile of 128 queries.
  void attention(std::int64_t d, std::int64_t ld) {
    for (std::int64_t keys = 128; keys <= kSeq; keys += 128) {
      for (int i = 0; i < 3; ++i)
        add({128, d, keys}, {ld, false}, {ld, true}, keys, Dtype::kF32);
      for (int i = 0; i < 2; ++i) add({128, keys, d}, {keys, false}, {ld, false}, ld, dtype_);
      for (int i = 0; i < 2; ++i)
        add({keys, 128, d}, {keys, true}, {ld, false}, d, Dtype::kF32);
    }
  }

  ops::Context ctx_;
  Dtype dtype_;
  std::vector<ops::MatmulArgs> products_;
  Tensor a_, b_, out_;
};

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Time by the wall clock and on this thread's CPU, which other programs disturb less.
struct Elapsed {
  double wall = 0, cpu = 0;
  void add(const auto& f) {
    const auto start = std::chrono::steady_clock::now();
    const double cpu_start = thread_seconds();
    f();
    cpu += thread_seconds() - cpu_start;
    wall += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

void train_step(benchmark::State& state, Dtype dtype) {
  Rank rank(dtype);
  Products products(dtype);
  double loss = rank.step();  // The first step makes the primitives.
  products.run();
  Elapsed steps, bound;
  for (auto _ : state) {
    const double before = steps.wall;
    steps.add([&] { loss = rank.step(); });
    bound.add([&] { products.run(); });
    state.SetIterationTime(steps.wall - before);
  }
  const double n = static_cast<double>(state.iterations()) * kTokens;
  const auto average = benchmark::Counter::kAvgThreads;
  state.counters["tok/s"] = n / steps.wall;
  state.counters["tok/cpu_s"] = benchmark::Counter(n / steps.cpu, average);
  state.counters["bound_tok/cpu_s"] = benchmark::Counter(n / bound.cpu, average);
  state.counters["of_bound"] = benchmark::Counter(bound.cpu / steps.cpu, average);
  state.counters["loss"] = benchmark::Counter(loss, average);
}

BENCHMARK_CAPTURE(train_step, fp32, Dtype::kF32)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->MinTime(3)
    ->ThreadRange(1, 2);
BENCHMARK_CAPTURE(train_step, bf16, Dtype::kBF16)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->MinTime(3)
    ->ThreadRange(1, 2);

}  // namespace
}  // namespace zeropp::zero
