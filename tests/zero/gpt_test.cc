// The whole model: gradient check, contracts, odd shapes, determinism, memory.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <thread>

#include "quant/error.h"
#include "tests/zero/gpt_harness.h"
#include "zero/memory_ledger.h"
#include "zero/ops/ops.h"

namespace zeropp::zero {
namespace {

using quant::Dtype;
using testing::centred;
using testing::Harness;
using testing::OwnedBatch;
using testing::random_batch;
using testing::to_f32;

GptConfig config(Dtype dtype = Dtype::kF32, bool tied = true) {
  GptConfig c;
  c.layers = 2;
  c.width = 40;  // Not a multiple of 16.
  c.heads = 2;
  c.vocab = 257;
  c.context = 21;
  c.tied = tied;
  c.dtype = dtype;
  return c;
}

using Bits = std::vector<std::vector<float>>;

/// Loss first, then every gradient.
Bits pass(Harness& h, const OwnedBatch& batch, float scale = 1) {
  Bits out = {{static_cast<float>(h.forward(batch.view(), true, scale))}};
  h.backward();
  for (const quant::Tensor& g : h.grads) out.push_back(to_f32(g.view()));
  return out;
}

TEST(Gpt, NamesShapesAndCounts) {
  const GptConfig c = config(Dtype::kF32, false);
  const auto model = make_gpt(c);
  const auto& t = model->tensors();
  ASSERT_EQ(t.size(), 2U + 24 + 3);
  const char* block[] = {"ln_1.weight",      "ln_1.bias",          "attn.c_attn.weight",
                         "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
                         "ln_2.weight",      "ln_2.bias",          "mlp.c_fc.weight",
                         "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
  EXPECT_EQ(t[0].name, "wte.weight");
  EXPECT_EQ(t[1].name, "wpe.weight");
  for (std::size_t i = 0; i < 24; ++i) {
    EXPECT_EQ(t[2 + i].name, "h." + std::to_string(i / 12) + "." + block[i % 12]);
  }
  EXPECT_EQ(t[26].name, "ln_f.weight");
  EXPECT_EQ(t[28].name, "lm_head.weight");
  EXPECT_EQ(t[4].shape, (std::vector<std::size_t>{40, 120}));
  EXPECT_EQ(t[12].shape, (std::vector<std::size_t>{160, 40}));
  EXPECT_EQ(t[28].shape, t[0].shape);
  EXPECT_DOUBLE_EQ(t[4].init_std, 0.02);
  EXPECT_DOUBLE_EQ(t[6].init_std, 0.02 / 2);
  EXPECT_EQ(t[2].init, InitKind::kOnes);
  EXPECT_EQ(t[3].init, InitKind::kZeros);
  std::size_t n = 0;
  for (const TensorSpec& s : t) n += s.numel;
  EXPECT_EQ(n, c.parameters());
  GptConfig bench;  // The 10.8 M of the benchmark.
  bench.layers = 6, bench.width = 384, bench.context = 256;
  EXPECT_EQ(bench.parameters(), 10'844'160U);
}

TEST(Gpt, UnitsOfATiedModelShareTheEmbedding) {
  const auto tied = make_gpt(config()), untied = make_gpt(config(Dtype::kF32, false));
  EXPECT_EQ(tied->units(), 4);
  EXPECT_EQ(tied->unit_tensors(0), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(tied->unit_tensors(3), (std::vector<std::uint32_t>{26, 27, 0}));
  EXPECT_EQ(tied->unit_grads(3), (std::vector<std::uint32_t>{26, 27}));
  EXPECT_EQ(untied->unit_tensors(3), (std::vector<std::uint32_t>{26, 27, 28}));
  EXPECT_EQ(untied->unit_grads(3), (std::vector<std::uint32_t>{28, 26, 27}));
}

TEST(Gpt, RefusesWhatCannotBe) {
  for (int GptConfig::*field : {&GptConfig::layers, &GptConfig::width, &GptConfig::heads,
                                &GptConfig::vocab, &GptConfig::context}) {
    GptConfig c = config();
    c.*field = 0;
    EXPECT_THROW(make_gpt(c), UsageError);
  }
  GptConfig odd = config();
  odd.heads = 3;
  EXPECT_THROW(make_gpt(odd), UsageError);

  Harness h(config());
  OwnedBatch b = random_batch(1, 1, 22, 257);
  EXPECT_THROW(h.forward(b.view()), UsageError) << "longer than the context";
  b = random_batch(1, 1, 5, 257);
  b.tokens[3] = 257;
  EXPECT_THROW(h.forward(b.view()), UsageError);
  b.tokens[3] = -1;
  EXPECT_THROW(h.forward(b.view()), UsageError);
  b.tokens[3] = 0;
  b.targets[2] = 257;
  EXPECT_THROW(h.forward(b.view()), UsageError);
}

class GptHeads : public ::testing::TestWithParam<bool> {};

/// For each tensor along its gradient plus as much of a random direction, both of length 1.
/// Losses come from fp32, so the step is large; Richardson's rule removes the h^2 term.
TEST_P(GptHeads, GradientsMatchDifferencesOfTheLoss) {
  Harness h(config(Dtype::kF32, GetParam()));
  const OwnedBatch batch = random_batch(1, 2, 19, 257, 5);
  const Bits grads = pass(h, batch);
  for (std::uint32_t t = 0; t < h.masters.size(); ++t) {
    const std::vector<float> kept = h.masters[t], &g = grads[t + 1];
    double noise_norm = 0, g_norm = 0, slope = 0;
    std::vector<double> direction(kept.size());
    for (std::uint32_t i = 0; i < kept.size(); ++i) {
      noise_norm += std::pow(centred(100 + t, i), 2);
      g_norm += std::pow(static_cast<double>(g[i]), 2);
    }
    noise_norm = std::sqrt(noise_norm);
    g_norm = std::sqrt(g_norm);
    for (std::uint32_t i = 0; i < kept.size(); ++i) {
      direction[i] = static_cast<double>(g[i]) / g_norm + centred(100 + t, i) / noise_norm;
      slope += direction[i] * static_cast<double>(g[i]);
    }
    const auto loss_at = [&](double step) {
      for (std::size_t i = 0; i < kept.size(); ++i) {
        h.masters[t][i] =
            static_cast<float>(static_cast<double>(kept[i]) + step * direction[i]);
      }
      h.round_weights();
      return h.forward(batch.view(), false);
    };
    const auto central = [&](double step) {
      return (loss_at(step) - loss_at(-step)) / (2 * step);
    };
    const double numeric = (4 * central(0.02) - central(0.04)) / 3;
    h.masters[t] = kept;
    EXPECT_NEAR(slope, numeric, 2e-5 + 1e-3 * g_norm) << h.model->tensors()[t].name;
  }
}

TEST_P(GptHeads, OddShapesRunAndScaleIsLinear) {
  for (const auto& [b, t] : {std::pair{1, 1}, std::pair{3, 1}, std::pair{1, 21}}) {
    Harness h(config(Dtype::kF32, GetParam()));
    const OwnedBatch batch = random_batch(2, b, t, 257);
    const Bits one = pass(h, batch), eight = pass(h, batch, 8);
    EXPECT_EQ(one[0], eight[0]);
    for (std::size_t i = 1; i < one.size(); ++i) {
      for (std::size_t j = 0; j < one[i].size(); ++j) {
        ASSERT_EQ(8 * one[i][j], eight[i][j]) << "a power of two scales exactly";
      }
    }
  }
}

TEST_P(GptHeads, AllMaskedBatchHasNoLossAndNoGradient) {
  Harness h(config(Dtype::kBF16, GetParam()));
  const Bits got = pass(h, random_batch(3, 2, 8, 257, 1));
  for (const std::vector<float>& v : got) {
    for (const float x : v) ASSERT_EQ(x, 0.0F);
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, GptHeads, ::testing::Values(true, false),
                         [](const auto& i) { return i.param ? "tied" : "untied"; });

class GptDtypes : public ::testing::TestWithParam<Dtype> {};

TEST_P(GptDtypes, HalfPrecisionStaysNearFp32) {
  const OwnedBatch batch = random_batch(4, 2, 20, 257, 7);
  Harness half(config(GetParam())), full(config());
  for (std::size_t t = 0; t < full.masters.size(); ++t) {
    full.masters[t] = to_f32(half.params[t].view());
  }
  full.round_weights();
  const Bits got = pass(half, batch, 64), want = pass(full, batch, 64);
  const double unit = GetParam() == Dtype::kBF16 ? 0x1p-8 : 0x1p-11;
  EXPECT_NEAR(got[0][0], want[0][0], unit * want[0][0]);
  for (std::size_t t = 1; t < got.size(); ++t) {
    double error = 0, size = 0;
    for (std::size_t i = 0; i < got[t].size(); ++i) {
      error += std::pow(static_cast<double>(got[t][i]) - static_cast<double>(want[t][i]), 2);
      size += std::pow(static_cast<double>(want[t][i]), 2);
    }
    EXPECT_LT(std::sqrt(error / size), 6 * unit) << full.model->tensors()[t - 1].name;
  }
}

TEST_P(GptDtypes, BitsDoNotDependOnTheThread) {
  const OwnedBatch batch = random_batch(5, 2, 17, 257, 7);
  Harness h(config(GetParam()));
  const Bits want = pass(h, batch);
  for (int run = 0; run < 2; ++run) {
    Bits got;
    double loss = 0;
    std::thread([&] { loss = h.forward(batch.view()); }).join();
    std::thread([&] { h.backward(); }).join();  // A rank may meet another worker's caches.
    got.push_back({static_cast<float>(loss)});
    for (const quant::Tensor& g : h.grads) got.push_back(to_f32(g.view()));
    EXPECT_EQ(got, want);
  }
  std::vector<Bits> both(2);
  std::vector<std::thread> threads;
  for (Bits& result : both) {
    threads.emplace_back([&result, &batch] {
      Harness own(config(GetParam()));
      result = pass(own, batch);
    });
  }
  for (std::thread& t : threads) t.join();
  for (const Bits& result : both) EXPECT_EQ(result, want);
}

TEST_P(GptDtypes, KernelsGiveTheSameBitsOnEveryInstructionSet) {
  const OwnedBatch batch = random_batch(6, 2, 21, 257, 7);
  Harness h(config(GetParam()));
  const Bits want = pass(h, batch);
  int targets = 0;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    EXPECT_EQ(pass(h, batch), want) << hwy::TargetName(target);
    ++targets;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_GT(targets, 1);
}

/// Buffers of a larger, training batch are reused by what follows and hold nothing over.
TEST_P(GptDtypes, BuffersHoldNothingOver) {
  const OwnedBatch small = random_batch(7, 1, 9, 257), large = random_batch(8, 3, 21, 257);
  Harness fresh(config(GetParam())), used(config(GetParam()));
  const Bits want = pass(fresh, small);
  pass(used, large);
  const double evaluated = used.forward(small.view(), false);
  EXPECT_EQ(static_cast<float>(evaluated), want[0][0]) << "evaluation and training agree";
  EXPECT_EQ(pass(used, small), want);
  used.run->end();
  EXPECT_EQ(pass(used, small), want);
}

TEST_P(GptDtypes, MemoryIsBookedAndFreed) {
  MemoryLedger ledger;
  Harness h(config(GetParam()), &ledger);
  const OwnedBatch batch = random_batch(9, 2, 21, 257);
  pass(h, batch);
  const auto of = [&](quant::MemoryKind k) {
    return ledger.current()[static_cast<std::size_t>(k)];
  };
  const std::uint64_t first = ledger.peak_total();
  EXPECT_GT(of(quant::MemoryKind::kActivation), 0U);
  // No copy of the model: scratch is less than the weights in fp32.
  EXPECT_LT(ledger.peak_by_kind()[static_cast<std::size_t>(quant::MemoryKind::kWorkspace)],
            config().parameters() * 4 + std::uint64_t{600'000});
  pass(h, batch);
  EXPECT_EQ(ledger.peak_total(), first) << "a second micro-step needs nothing more";
  h.run->end();
  EXPECT_EQ(ledger.current_total(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GptDtypes,
                         ::testing::Values(Dtype::kF32, Dtype::kBF16, Dtype::kF16),
                         [](const auto& i) { return std::string(quant::name(i.param)); });

}  // namespace
}  // namespace zeropp::zero
