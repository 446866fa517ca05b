#include "zero/engine/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "quant/error.h"
#include "zero/engine/state_gather.h"

namespace zeropp::zero {
namespace {

using quant::ResidualPiece;
using quant::Role;

constexpr Role kRoles[] = {Role::kWeight, Role::kGradient};

// ---- Bytes of what each rank sends to rank 0. -----------------------------------------------

class ByteWriter {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof value);
  }
  void put_run(std::span<const std::byte> run) {
    put(std::uint64_t{run.size()});
    bytes_.insert(bytes_.end(), run.begin(), run.end());
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> run() { return take(get<std::uint64_t>()); }

 private:
  std::span<const std::byte> take(std::size_t n) {
    if (n > bytes_.size()) {
      throw TransportError(fmt::format(
          "[checkpoint] expected {} more bytes of a rank's state, found {}", n, bytes_.size()));
    }
    const auto front = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return front;
  }
  std::span<const std::byte> bytes_;
};

std::span<const std::byte> text_bytes(const std::string& text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void write_piece(ByteWriter& out, const ResidualPiece& p) {
  const quant::ResidualKey& k = p.key;
  out.put(k.role);
  for (const std::uint32_t field : {k.tensor, k.part, k.level, k.source}) out.put(field);
  out.put(k.second_hop);
  out.put(k.receiver);
  out.put(std::uint64_t{p.n});
  out.put_run(text_bytes(k.decorator));
  out.put_run(text_bytes(p.store));
  out.put_run(p.bytes);
}

ResidualPiece read_piece(ByteReader& in) {
  ResidualPiece p;
  p.key.role = in.get<Role>();
  for (std::uint32_t* field : {&p.key.tensor, &p.key.part, &p.key.level, &p.key.source}) {
    *field = in.get<std::uint32_t>();
  }
  p.key.second_hop = in.get<bool>();
  p.key.receiver = in.get<bool>();
  p.n = static_cast<std::size_t>(in.get<std::uint64_t>());
  p.key.decorator = text_of(in.run());
  p.store = text_of(in.run());
  const auto bytes = in.run();
  p.bytes.assign(bytes.begin(), bytes.end());
  return p;
}

void write_tensors(ByteWriter& out, const std::vector<std::vector<float>>& tensors) {
  out.put(std::uint64_t{tensors.size()});
  for (const auto& x : tensors) out.put_run(std::as_bytes(std::span<const float>(x)));
}

std::vector<std::vector<float>> read_tensors(ByteReader& in) {
  std::vector<std::vector<float>> tensors(in.get<std::uint64_t>());
  for (auto& x : tensors) {
    const auto bytes = in.run();
    x.resize(bytes.size() / sizeof(float));
    if (!x.empty()) std::memcpy(x.data(), bytes.data(), bytes.size());
  }
  return tensors;
}

/// Residuals and PowerSGD's state of all ranks, on rank 0.
void gather_rank_state(const TrainingParts& parts, const quant::CodecState& codec_state,
                       Checkpoint& c) {
  const bool low_rank = parts.context.config.powersgd_rank > 0;
  if (parts.context.codec_state == nullptr && !low_rank) return;
  ByteWriter out;
  const auto pieces = codec_state.pieces();
  out.put(std::uint64_t{pieces.size()});
  for (const ResidualPiece& p : pieces) write_piece(out, p);
  if (low_rank) {
    const LowRankState state = parts.gradients.low_rank_state();
    write_tensors(out, state.error);
    write_tensors(out, state.right);
  }
  for (const auto& bytes : gather_bytes_on_root(parts.context, out.bytes())) {
    ByteReader in(bytes);
    auto& rank = c.residuals.emplace_back(in.get<std::uint64_t>());
    for (ResidualPiece& p : rank) p = read_piece(in);
    if (!low_rank) continue;
    auto error = read_tensors(in);
    c.low_rank.push_back({.error = std::move(error), .right = read_tensors(in)});
  }
}

// ---- What decides whether residuals fit. ----------------------------------------------------

std::string weight_codec_text(const EngineConfig& c) {
  return c.weight_codec ? c.weight_codec->spec() : "";
}

std::string gradient_codecs_text(const EngineConfig& c) {
  if (c.powersgd_rank > 0) return fmt::format("powersgd:rank={}", c.powersgd_rank);
  std::string text;
  for (const auto& codec : c.grad_codecs) text += (text.empty() ? "" : " ") + codec->spec();
  return text;
}

std::string exact_text(const ExactRule& rule) {
  return fmt::format("{} {} {}", rule.one_d, rule.below, fmt::join(rule.patterns, ","));
}

std::string layout_text(const EngineContext& context) {
  const EngineConfig& c = context.config;
  const StagePolicy& p = c.policy;
  return fmt::format(
      "levels {}; {}; params {} grads {} optimizer {} secondary {} reduce_at {}; wire {}; "
      "weights {} exact {}; gradients {} exact {}",
      fmt::join(context.comm.transport.topology().prefix_sizes(), " "),
      hierarchy::name(c.algorithm), p.params, p.grads, p.optimizer, p.secondary,
      static_cast<int>(p.reduce_at), quant::name(c.wire), weight_codec_text(c),
      exact_text(c.exact_weights), gradient_codecs_text(c), exact_text(c.exact_grads));
}

// ---- Loading. -------------------------------------------------------------------------------

class Loader {
 public:
  Loader(const TrainingParts& parts, quant::CodecState& codec_state, const Checkpoint& c)
      : parts_(parts),
        context_(parts.context),
        state_(codec_state),
        c_(c),
        same_layout_(c.layout == layout_text(context_)) {}

  std::vector<std::string> run() {
    parts_.optimizer.load_all(c_.state);
    const OptimizerConfig& o = context_.config.optimizer;
    if ((has_momentum(o) && !c_.has_momentum) || (has_variance(o) && !c_.has_variance)) {
      note("optimizer: it keeps moments that the checkpoint does not have; they start at zero");
    }
    load_counts();
    parts_.gradients.forget();
    parts_.weights.invalidate_copies();
    load_residuals();
    load_low_rank();
    const bool keeps = parts_.routes.keeps_copies(context_.config);
    const bool sends = keeps && !load_copies();
    // hpZ after a skipped step: what the secondary saves the next pass to gather.
    if (!keeps && same_layout_ && !c_.copies.empty()) parts_.weights.set_reference(c_.copies);
    parts_.weights.refresh();
    if (sends) state_.commit(Role::kWeight);
    return std::move(notes_);
  }

 private:
  void note(std::string text) { notes_.push_back(std::move(text)); }

  void load_counts() {
    context_.step = c_.step;
    context_.version = c_.version;
    context_.updates = c_.updates;
    context_.sample_shift = c_.samples - c_.step * context_.samples_per_step();
    if (context_.config.loss_scale.enabled) parts_.scaler.restore(c_.loss_scale);
  }

  bool same_codecs(Role role) const {
    return role == Role::kWeight ? c_.weight_codec == weight_codec_text(context_.config)
                                 : c_.gradient_codecs == gradient_codecs_text(context_.config);
  }

  void load_residuals() {
    state_.clear();
    for (const Role role : kRoles) {
      const auto at = static_cast<std::size_t>(role);
      if (at < c_.applied.size()) state_.set_applied(role, c_.applied[at]);
    }
    const auto of = [](const std::vector<ResidualPiece>& pieces, Role role) {
      std::vector<ResidualPiece> some;
      std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(some),
                   [&](const ResidualPiece& p) { return p.key.role == role; });
      return some;
    };
    if (context_.config.sabotage == Sabotage::kLossyCheckpoint) return;
    if (same_layout_) {
      if (!c_.residuals.empty()) {
        state_.restore(c_.residuals.at(static_cast<std::size_t>(context_.rank())));
      }
      return;
    }
    for (const Role role : kRoles) {
      std::vector<std::vector<ResidualPiece>> by_rank;
      bool any = false;
      for (const auto& pieces : c_.residuals) {
        by_rank.push_back(of(pieces, role));
        any = any || !by_rank.back().empty();
      }
      if (!any) continue;
      if (!same_codecs(role)) {
        note(fmt::format("{}s: residuals of other codecs are dropped", quant::name(role)));
        continue;
      }
      state_.adopt(quant::merge_residuals(
                       by_rank, [&](std::uint32_t t) { return context_.tensor(t).numel; }),
                   context_.ranks());
      note(fmt::format("{}s: residuals of {} ranks are their mean over the old senders",
                       quant::name(role), c_.residuals.size()));
    }
  }

  void load_low_rank() {
    if (c_.low_rank.empty()) return;
    if (context_.config.powersgd_rank == 0) {
      return note("gradients: PowerSGD's errors are dropped");
    }
    if (static_cast<int>(c_.low_rank.size()) == context_.ranks()) {
      parts_.gradients.restore_low_rank(c_.low_rank[static_cast<std::size_t>(context_.rank())]);
      if (!same_codecs(Role::kGradient)) {
        note("gradients: PowerSGD of another rank: errors are kept, Q is drawn anew");
      }
      return;
    }
    LowRankState mean = c_.low_rank[0];
    for (std::size_t t = 0; t < mean.error.size(); ++t) {
      for (std::size_t i = 0; i < mean.error[t].size(); ++i) {
        double sum = 0;
        for (const LowRankState& rank : c_.low_rank) sum += rank.error[t].at(i);
        mean.error[t][i] = static_cast<float>(sum / static_cast<double>(c_.low_rank.size()));
      }
    }
    parts_.gradients.restore_low_rank(mean);
    note(fmt::format("gradients: PowerSGD's errors are the mean of {} ranks'",
                     c_.low_rank.size()));
  }

  /// True if what ranks hold of the weights was in the checkpoint; else they are sent anew.
  bool load_copies() {
    if (context_.config.sabotage == Sabotage::kLossyCheckpoint) return false;
    if (c_.copies.empty()) {
      note("weights: no reference weights; each tensor's next gather makes them");
      return false;
    }
    const bool differences = parts_.routes.codes_differences();
    if (!same_codecs(Role::kWeight) && !(differences && c_.weight_codec.starts_with("delta"))) {
      note("weights: the reference weights of another codec are dropped");
      return false;
    }
    parts_.weights.set_reference(c_.copies);
    return true;
  }

  const TrainingParts& parts_;
  EngineContext& context_;
  quant::CodecState& state_;
  const Checkpoint& c_;
  const bool same_layout_;
  std::vector<std::string> notes_;
};

}  // namespace

WeightReference gather_copies(EngineContext& context, const WeightStore& weights) {
  return {.versions = weights.copy_versions(),
          .tensors = gather_on_root(context, 1,
                                    [&](std::uint32_t t) { return weights.copy_chunk(t); })};
}

Checkpoint save_training(const TrainingParts& parts, const quant::CodecState& codec_state) {
  EngineContext& context = parts.context;
  const EngineConfig& config = context.config;
  Checkpoint c;
  c.step = context.step;
  c.version = context.version;
  c.updates = context.updates;
  c.samples = context.step * context.samples_per_step() + context.sample_shift;
  c.loss_scale = parts.scaler.state();
  c.has_momentum = has_momentum(config.optimizer);
  c.has_variance = has_variance(config.optimizer);
  c.ranks = context.ranks();
  c.layout = layout_text(context);
  c.weight_codec = weight_codec_text(config);
  c.gradient_codecs = gradient_codecs_text(config);
  for (int role = 0; role < 5; ++role) {
    c.applied.push_back(codec_state.applied(static_cast<Role>(role)));
  }
  if (parts.routes.keeps_copies(config) || parts.weights.has_current_secondary()) {
    c.copies = gather_copies(context, parts.weights);
  }
  gather_rank_state(parts, codec_state, c);
  return c;
}

std::vector<std::string> load_training(const TrainingParts& parts,
                                       quant::CodecState& codec_state,
                                       const Checkpoint& checkpoint) {
  return Loader(parts, codec_state, checkpoint).run();
}

}  // namespace zeropp::zero
