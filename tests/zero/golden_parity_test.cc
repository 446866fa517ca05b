// The model against PyTorch: losses and gradient norms of 20 fp32 steps, and the gradients of
// the first step against fp64. tests/golden/make_golden.py says how the numbers came about.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "tests/zero/gpt_harness.h"
#include "zero/optimizer.h"

namespace zeropp::zero {
namespace {

using testing::centred;
using testing::Harness;
using testing::mix;
using testing::OwnedBatch;

constexpr int kBatch = 3, kSeq = 24;
constexpr std::uint32_t kData = 1000, kDirection = 2000;

struct Golden {
  std::map<std::string, std::vector<double>> grads;
  std::vector<double> losses, norms;
};

/// Lines "case NAME", "grad TENSOR norm projection elements...", "step INDEX loss norm".
Golden load(const std::string& wanted) {
  std::ifstream file(ZEROPP_GOLDEN_FILE);
  Golden golden;
  std::string line, word, current;
  while (std::getline(file, line)) {
    std::istringstream in(line);
    in >> word;
    if (word == "case") in >> current;
    if (current != wanted) continue;
    if (word == "grad") {
      std::string tensor;
      in >> tensor;
      for (double v = 0; in >> v;) golden.grads[tensor].push_back(v);
    } else if (word == "step") {
      double index = 0, loss = 0, norm = 0;
      in >> index >> loss >> norm;
      golden.losses.push_back(loss);
      golden.norms.push_back(norm);
    }
  }
  return golden;
}

GptConfig config(bool tied) {
  GptConfig c;
  c.layers = 2;
  c.width = 48;
  c.heads = 3;
  c.vocab = 67;
  c.context = 32;
  c.tied = tied;
  return c;
}

OwnedBatch batch_of(std::uint32_t step) {
  OwnedBatch b(kBatch, kSeq);
  for (std::uint32_t row = 0; row < kBatch; ++row) {
    for (std::uint32_t t = 0; t <= kSeq; ++t) {
      const std::uint32_t h = mix(kData + step, row * (kSeq + 1) + t);
      const auto token = static_cast<std::int32_t>(((h >> 4U) % 67) * ((h >> 16U) % 67) / 67);
      const std::uint32_t at = row * kSeq + t;
      if (t < kSeq) b.tokens[at] = token;
      if (t > 0) b.targets[at - 1] = h % 13 == 0 ? -1 : token;
    }
  }
  return b;
}

/// Of all gradients, in double, as torch's clip_grad_norm_ sees them.
double grad_norm(const Harness& h) {
  double sum = 0;
  for (const quant::Tensor& g : h.grads) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      sum += static_cast<double>(g.f32()[i]) * static_cast<double>(g.f32()[i]);
    }
  }
  return std::sqrt(sum);
}

class GoldenParity : public ::testing::TestWithParam<bool> {
 protected:
  GoldenParity()
      : golden_(load(GetParam() ? "tied" : "untied")), harness_(config(GetParam())) {}
  Golden golden_;
  Harness harness_;
};

TEST_P(GoldenParity, FirstStepGradientsMatchFp64) {
  const OwnedBatch batch = batch_of(0);
  harness_.forward(batch.view());
  harness_.backward();
  const auto& tensors = harness_.model->tensors();
  ASSERT_EQ(golden_.grads.size(), tensors.size());
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    SCOPED_TRACE(tensors[t].name);
    std::vector<double> g(harness_.grads[t].f32(), harness_.grads[t].f32() + tensors[t].numel);
    const std::vector<double>& want = golden_.grads.at(tensors[t].name);
    ASSERT_EQ(want.size(), 10U);
    if (tensors[t].name.ends_with("c_attn.bias")) {  // The keys' part is 0 but for rounding.
      for (std::size_t i = 48; i < 96; ++i) {
        EXPECT_LT(std::abs(g[i]), 1e-6 * want[0]);
        g[i] = 0;
      }
    }
    double squares = 0, projection = 0;
    for (std::uint32_t i = 0; i < g.size(); ++i) {
      squares += g[i] * g[i];
      projection += g[i] * centred(kDirection + t, i);
    }
    EXPECT_NEAR(std::sqrt(squares), want[0], 1e-5 * want[0]);
    EXPECT_NEAR(projection, want[1], 1e-5 * want[0]);
    for (std::size_t j = 0; j < 8; ++j) {
      EXPECT_NEAR(g[j * g.size() / 8], want[j + 2], 1e-5 * want[0]);
    }
  }
}

TEST_P(GoldenParity, TwentyStepsMatchFp32) {
  OptimizerConfig adamw;
  adamw.lr = 3e-3;
  adamw.beta2 = 0.95;
  adamw.weight_decay = 0.1;
  std::vector<std::vector<float>> m, v;
  for (const auto& master : harness_.masters) {
    m.emplace_back(master.size(), 0.0F);
    v.emplace_back(master.size(), 0.0F);
  }
  ASSERT_EQ(golden_.losses.size(), 20U);
  for (std::uint32_t step = 0; step < 20; ++step) {
    const OwnedBatch batch = batch_of(step);
    const double loss = harness_.forward(batch.view());
    harness_.backward();
    const double norm = grad_norm(harness_);
    EXPECT_NEAR(loss, golden_.losses[step], 1e-5 * golden_.losses[step]) << "step " << step;
    EXPECT_NEAR(norm, golden_.norms[step], 1e-4 * golden_.norms[step]) << "step " << step;
    const double clip = std::min(1.0, 1.0 / (norm + 1e-6));
    for (std::size_t t = 0; t < m.size(); ++t) {
      optimizer_update(adamw, {.master = harness_.masters[t].data(),
                               .m = m[t].data(),
                               .v = v[t].data(),
                               .grad = harness_.grads[t].view(),
                               .grad_divisor = static_cast<float>(1 / clip),
                               .lr = adamw.lr,
                               .weight_decay = adamw.weight_decay,
                               .t = step + 1});
    }
    harness_.round_weights();
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, GoldenParity, ::testing::Values(true, false),
                         [](const auto& i) { return i.param ? "tied" : "untied"; });

}  // namespace
}  // namespace zeropp::zero
