#include "zero/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "quant/codec_state.h"
#include "quant/convert.h"
#include "quant/error.h"
#include "zero/engine/checkpoint.h"
#include "zero/engine/context.h"
#include "zero/engine/gradients.h"
#include "zero/engine/optimizer_state.h"
#include "zero/engine/replicas.h"
#include "zero/engine/routes.h"
#include "zero/engine/state_gather.h"
#include "zero/engine/weights.h"

namespace zeropp::zero {

using hierarchy::Phase;

class Engine::Impl {
 public:
  Impl(hierarchy::Comm& comm, const Model& model, MemoryLedger& memory,
       const EngineConfig& config, const Dataset* data)
      : context_{.comm = comm, .model = model, .memory = memory, .config = checked(config)},
        codec_state_(&memory),
        data_(data),
        routes_((check_config(config, comm.transport.topology(), model.tensors()), context_)),
        optimizer_(context_),
        weights_(context_, routes_, optimizer_),
        gradients_(context_, routes_),
        scaler_(config.loss_scale),
        run_(model.start(&memory)) {
    if (keeps_codec_state(config)) context_.codec_state = &codec_state_;
    context_.set_phase(Phase::kInit);
    optimizer_.initialise();
    weights_.initialise();
    codec_state_.commit(quant::Role::kWeight);
  }

  StepResult train_step();
  double evaluate(std::uint64_t windows, bool deployed);
  std::vector<std::vector<float>> gather_state();
  std::string state_sha256();
  void load_masters(const std::vector<std::vector<float>>& tensors,
                    const WeightReference* reference);
  WeightReference gather_reference();
  Checkpoint save();
  std::vector<std::string> load(const Checkpoint& checkpoint);
  std::vector<std::vector<float>> gather_gradients();
  StateBytes formula() const;

  EngineContext context_;
  quant::CodecState codec_state_;
  const Dataset* data_;
  RouteTable routes_;
  OptimizerState optimizer_;
  WeightStore weights_;
  GradientStore gradients_;
  LossScaler scaler_;
  std::unique_ptr<ModelRun> run_;
  std::uint64_t skipped_ = 0;
  int consecutive_skips_ = 0;
  bool keep_gradients_ = false;
  std::vector<std::vector<float>> kept_;

 private:
  static const EngineConfig& checked(const EngineConfig& config) {
    if (config.policy.params < 1 || config.policy.optimizer < 1 || config.policy.grads < 1) {
      throw UsageError("engine", "a policy from make_policy", "a modulus below 1");
    }
    return config;
  }
  double micro_step(float grad_scale);
  void apply(StepResult& result, double sum_squares);
  void refresh_weights();
  void load_batch(int samples, std::uint64_t first, bool training);

  std::vector<std::int32_t> tokens_, targets_;
};

/// Samples first .. first + samples - 1 of the training or held-out text.
void Engine::Impl::load_batch(int samples, std::uint64_t first, bool training) {
  const auto seq = static_cast<std::size_t>(context_.config.seq);
  tokens_.resize(static_cast<std::size_t>(samples) * seq);
  targets_.resize(tokens_.size());
  for (std::size_t b = 0; b < static_cast<std::size_t>(samples); ++b) {
    std::int32_t* tokens = tokens_.data() + b * seq;
    std::int32_t* targets = targets_.data() + b * seq;
    if (training) {
      train_sample(*data_, context_.config.seed, first + b, context_.config.seq, tokens,
                   targets);
    } else {
      validation_sample(*data_, first + b, context_.config.seq, tokens, targets);
    }
  }
}

double Engine::Impl::micro_step(float grad_scale) {
  const EngineConfig& c = context_.config;
  const std::uint64_t position =
      (context_.step * static_cast<std::uint64_t>(c.gas) + context_.micro) *
          static_cast<std::uint64_t>(context_.ranks()) +
      static_cast<std::uint64_t>(context_.rank());
  load_batch(c.micro_batch,
             position * static_cast<std::uint64_t>(c.micro_batch) + context_.sample_shift,
             true);
  const Batch batch{
      .tokens = tokens_, .targets = targets_, .batch = c.micro_batch, .seq = c.seq};
  const int units = context_.model.units();

  context_.set_phase(Phase::kForward);
  weights_.begin_pass(WeightStore::Mode::kTrain);
  {
    const MathTimer timer(context_);
    run_->begin(batch, true, grad_scale);
  }
  for (int u = 0; u < units; ++u) {
    weights_.acquire();
    {
      const MathTimer timer(context_);
      run_->forward(u, weights_);
    }
    weights_.release();
  }
  context_.set_phase(Phase::kBackward);
  for (int u = units - 1; u >= 0; --u) {
    weights_.acquire();
    {
      const MathTimer timer(context_);
      run_->backward(u, weights_, gradients_);
    }
    weights_.release();
    gradients_.after_unit();
  }
  gradients_.after_backward();
  return run_->loss();
}

StepResult Engine::Impl::train_step() {
  const EngineConfig& c = context_.config;
  StepResult result;
  result.loss_scale = scaler_.scale();
  codec_state_.set_gradient_scale(static_cast<float>(scaler_.scale()));
  gradients_.begin_step(scaler_.scale());
  const auto grad_scale = static_cast<float>(scaler_.scale() / c.gas);
  double loss = 0;
  for (context_.micro = 0; context_.micro < static_cast<std::uint32_t>(c.gas);
       ++context_.micro) {
    loss += micro_step(grad_scale);
  }
  context_.set_phase(Phase::kStep);
  context_.micro = static_cast<std::uint32_t>(c.gas - 1);
  gradients_.boundary();

  double own_squares = 0;
  {
    const MathTimer timer(context_);
    own_squares = gradients_.own_sum_squares();
  }
  const double mine[2] = {loss / c.gas, own_squares};
  std::vector<double> all(2 * static_cast<std::size_t>(context_.ranks()));
  hierarchy::gather_scalars(context_.comm, Phase::kStep, quant::Role::kScalar, mine, all);
  double sum_squares = 0;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    result.loss += all[i];
    sum_squares += all[i + 1];
  }
  result.loss /= context_.ranks();
  if (keep_gradients_) {
    kept_.clear();
    for (std::uint32_t t = 0; t < context_.tensors().size(); ++t) {
      kept_.push_back(gradients_.own_chunk(t));
    }
  }
  apply(result, sum_squares);
  result.underflow = gradients_.underflow();
  result.gradient_error = gradients_.error();
  ++context_.step;
  context_.micro = 0;
  return result;
}

/// What the masters' codec keeps belongs to the version that was sent, whatever becomes of the
/// next step.
void Engine::Impl::refresh_weights() {
  weights_.refresh();
  codec_state_.commit(quant::Role::kWeight);
}

void Engine::Impl::apply(StepResult& result, double sum_squares) {
  const EngineConfig& c = context_.config;
  result.grad_norm = std::sqrt(sum_squares) / scaler_.scale();
  result.lr = schedule_lr(c.schedule, c.optimizer.lr, context_.version);
  result.skipped = !std::isfinite(sum_squares);
  if (result.skipped) {
    codec_state_.rollback(quant::Role::kGradient);
    ++skipped_;
    if (++consecutive_skips_ >= c.max_consecutive_skips) {
      throw std::runtime_error(fmt::format(
          "[engine] {} steps in a row had a non-finite gradient (last: step {}, loss {}, loss "
          "scale {})",
          consecutive_skips_, context_.step, result.loss, scaler_.scale()));
    }
  } else {
    consecutive_skips_ = 0;
    double divisor = scaler_.scale();
    if (c.clip > 0) divisor *= std::max(1.0, (result.grad_norm + 1e-6) / c.clip);
    optimizer_.update(static_cast<float>(divisor), result.lr, gradients_.modulus(),
                      [&](std::uint32_t t) { return gradients_.mean(t); });
    codec_state_.commit(quant::Role::kGradient);
    ++context_.version;
    ++context_.updates;
    refresh_weights();
  }
  gradients_.end_step(!result.skipped);
  scaler_.update(result.skipped);
}

double Engine::Impl::evaluate(std::uint64_t windows, bool deployed) {
  const EngineConfig& c = context_.config;
  const auto ranks = static_cast<std::uint64_t>(context_.ranks());
  const auto batch = static_cast<std::uint64_t>(c.micro_batch);
  windows = std::min(windows, validation_windows(*data_, c.seq));
  if (windows == 0) {
    throw UsageError("eval.windows", "at least one held-out window of seq tokens", "none");
  }
  const Phase before = context_.phase;
  context_.set_phase(Phase::kEval);
  double sum = 0;
  const std::uint64_t passes = (windows + ranks * batch - 1) / (ranks * batch);
  for (std::uint64_t pass = 0; pass < passes; ++pass) {
    const std::uint64_t first =
        (pass * ranks + static_cast<std::uint64_t>(context_.rank())) * batch;
    const int samples =
        static_cast<int>(first < windows ? std::min(batch, windows - first) : 0);
    if (samples > 0) {
      load_batch(samples, first, false);
      run_->begin({.tokens = tokens_, .targets = targets_, .batch = samples, .seq = c.seq},
                  false, 1.0F);
    }
    weights_.begin_pass(deployed ? WeightStore::Mode::kDeployed : WeightStore::Mode::kExact);
    for (int u = 0; u < context_.model.units(); ++u) {
      weights_.acquire();
      if (samples > 0) run_->forward(u, weights_);
      weights_.release();
    }
    if (samples > 0) sum += run_->loss() * samples;
  }
  run_->end();
  const double total = hierarchy::sum_scalar(context_.comm, Phase::kEval, sum);
  context_.set_phase(before);
  return total / static_cast<double>(windows);
}

std::vector<std::vector<float>> Engine::Impl::gather_state() {
  return gather_on_root(context_, 3, [&](std::uint32_t t) {
    const std::size_t n = context_.shard_size(t, context_.ranks());
    std::vector<float> own(3 * n, 0.0F);
    for_each_piece(context_, t, context_.config.policy.optimizer, context_.ranks(),
                   [&](const auto& outer, const auto&) {
                     const auto s = optimizer_.slices(t, outer.local, outer.size);
                     std::size_t part = 0;
                     for (const auto& view : {s.master, s.m, s.v}) {
                       if (view.n != 0) {
                         quant::convert(view, quant::mut_view(own).slice(part * n, n));
                       }
                       ++part;
                     }
                   });
    return own;
  });
}

std::string Engine::Impl::state_sha256() {
  const auto state = gather_state();
  if (context_.rank() != 0) return {};
  std::vector<std::uint32_t> order(state.size());
  for (std::uint32_t t = 0; t < order.size(); ++t) order[t] = t;
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return context_.tensor(a).name < context_.tensor(b).name;
  });
  Sha256 sha;
  for (const std::uint32_t t : order)
    sha.update(state[t].data(), state[t].size() * sizeof(float));
  sha.update(&context_.version, sizeof context_.version);
  return sha.hex();
}

void Engine::Impl::load_masters(const std::vector<std::vector<float>>& tensors,
                                const WeightReference* reference) {
  optimizer_.load(tensors);
  context_.updates = 0;
  gradients_.forget();
  context_.set_phase(Phase::kInit);
  weights_.invalidate_copies();
  codec_state_.clear();
  if (reference != nullptr) {
    if (!routes_.codes_differences()) {
      throw UsageError("load_masters", "a reference only where weights travel through 'delta'",
                       "one");
    }
    weights_.set_reference(*reference);
  }
  refresh_weights();
}

WeightReference Engine::Impl::gather_reference() {
  if (!routes_.codes_differences()) {
    throw UsageError("gather_reference", "weights that travel through 'delta'", "no reference");
  }
  return gather_copies(context_, weights_);
}

Checkpoint Engine::Impl::save() {
  Checkpoint c = save_training({context_, routes_, optimizer_, weights_, gradients_, scaler_},
                               codec_state_);
  c.skipped = skipped_;
  c.consecutive_skips = consecutive_skips_;
  c.state = gather_state();
  return c;
}

std::vector<std::string> Engine::Impl::load(const Checkpoint& c) {
  context_.set_phase(Phase::kInit);
  skipped_ = c.skipped;
  consecutive_skips_ = c.consecutive_skips;
  return load_training({context_, routes_, optimizer_, weights_, gradients_, scaler_},
                       codec_state_, c);
}

std::vector<std::vector<float>> Engine::Impl::gather_gradients() {
  if (!keep_gradients_ || kept_.empty()) {
    throw UsageError("gather_gradients", "keep_gradients(true) before a step", "no gradients");
  }
  return gather_on_root(context_, 1, [&](std::uint32_t t) { return kept_[t]; });
}

StateBytes Engine::Impl::formula() const {
  const EngineConfig& c = context_.config;
  const StateLayout layout{.param = context_.model.dtype(),
                           .grad = context_.model.dtype(),
                           .accum = c.grad_accum,
                           .adam = has_variance(c.optimizer),
                           .momentum = has_momentum(c.optimizer)};
  StateBytes bytes;
  for (const TensorSpec& t : context_.tensors()) {
    bytes += state_bytes(c.policy, layout, t.numel, context_.ranks(), context_.rank());
  }
  return bytes;
}

Engine::Engine(hierarchy::Comm& comm, const Model& model, MemoryLedger& memory,
               const EngineConfig& config, const Dataset* data)
    : impl_(std::make_unique<Impl>(comm, model, memory, config, data)) {}
Engine::~Engine() = default;

StepResult Engine::train_step() { return impl_->train_step(); }
double Engine::evaluate(std::uint64_t windows, bool deployed) {
  return impl_->evaluate(windows, deployed);
}
bool Engine::has_deployed_weights() const { return impl_->routes_.codes_weights(); }
std::uint64_t Engine::applied_steps() const { return impl_->context_.version; }
std::uint64_t Engine::skipped_steps() const { return impl_->skipped_; }
std::vector<Route> Engine::routes() const { return impl_->routes_.describe(impl_->context_); }
EngineTimes Engine::times() const {
  return {.math = impl_->context_.math_seconds, .codec = impl_->context_.comm.codec_seconds};
}
void Engine::reset_times() {
  impl_->context_.math_seconds = 0;
  impl_->context_.comm.codec_seconds = 0;
}
quant::CodecState* Engine::codec_state() { return impl_->context_.codec_state; }
StateBytes Engine::formula() const { return impl_->formula(); }
std::string Engine::state_sha256() { return impl_->state_sha256(); }
std::vector<std::vector<float>> Engine::gather_state() { return impl_->gather_state(); }
void Engine::load_masters(const std::vector<std::vector<float>>& tensors,
                          const WeightReference* reference) {
  impl_->load_masters(tensors, reference);
}
WeightReference Engine::gather_reference() { return impl_->gather_reference(); }
Checkpoint Engine::save() { return impl_->save(); }
std::vector<std::string> Engine::load(const Checkpoint& checkpoint) {
  return impl_->load(checkpoint);
}
std::uint64_t Engine::unreferenced_gathers() const {
  return impl_->weights_.unreferenced_gathers();
}
void Engine::keep_gradients(bool on) { impl_->keep_gradients_ = on; }
std::vector<std::vector<float>> Engine::gather_gradients() { return impl_->gather_gradients(); }

}  // namespace zeropp::zero
