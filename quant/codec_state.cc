#include "quant/codec_state.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "quant/convert.h"
#include "quant/error.h"
#include "quant/registry.h"

namespace zeropp::quant {
namespace {

std::size_t stored_bytes(std::size_t n, const ResidualStore& store) {
  return store.codec == nullptr ? n * sizeof(float) : store.codec->max_wire_size(n);
}

std::string store_name(const ResidualStore& store) {
  return store.codec == nullptr ? "fp32" : store.codec->spec();
}

std::string describe(const ResidualKey& key) {
  return "tensor " + std::to_string(key.tensor) + ", part " + std::to_string(key.part) +
         ", level " + std::to_string(key.level) + " of '" + key.decorator + "'";
}

}  // namespace

ResidualKey ResidualKey::of(const CodecContext& ctx, const std::string& decorator) {
  ResidualKey key;
  key.role = ctx.role;
  key.tensor = ctx.tensor;
  key.part = ctx.part;
  key.level = ctx.level;
  key.second_hop = ctx.second_hop;
  key.decorator = decorator;
  return key;
}

Residual::Residual(MemoryTracker* memory, std::size_t n, const ResidualStore& store)
    : n_(n),
      store_(store),
      kept_(memory, MemoryKind::kResidual, stored_bytes(n, store)),
      next_(memory, MemoryKind::kResidual, stored_bytes(n, store)) {
  kept_.zero();  // Zero numbers in every store: an all-zero block has a zero scale.
}

const float* Residual::read(Tensor& scratch) const {
  const Buffer& from = pending_ ? next_ : kept_;
  if (store_.codec == nullptr) return reinterpret_cast<const float*>(from.data());
  scratch = Tensor(nullptr, MemoryKind::kWorkspace, Dtype::kF32, n_);
  store_.codec->decode(from.span(), scratch.view());
  return scratch.f32();
}

void Residual::write(const float* values) {
  pending_ = true;
  if (store_.codec == nullptr) {
    if (n_ != 0) std::memcpy(next_.data(), values, n_ * sizeof(float));
  } else {
    store_.codec->encode({values, Dtype::kF32, n_}, {}, next_.span());
  }
}

void Residual::commit(std::uint64_t applied) {
  if (pending_) kept_.swap(next_);
  pending_ = false;
  if (store_.reset != 0 && applied % store_.reset == 0) kept_.zero();
}

void Residual::start(const float* values) {
  write(values);
  kept_.swap(next_);
  pending_ = false;
}

void Residual::set_raw(std::span<const std::byte> bytes) {
  if (bytes.size() != kept_.bytes()) {
    throw UsageError("residual", std::to_string(kept_.bytes()) + " bytes",
                     std::to_string(bytes.size()));
  }
  if (!bytes.empty()) std::memcpy(kept_.data(), bytes.data(), bytes.size());
}

Residual& CodecState::residual(const ResidualKey& key, std::size_t n,
                               const ResidualStore& store) {
  const auto found = residuals_.find(key);
  if (found != residuals_.end()) {
    if (found->second.size() == n) return found->second;
    throw UsageError("codec state",
                     std::to_string(found->second.size()) + " numbers in " + describe(key),
                     std::to_string(n));
  }
  Residual& fresh = residuals_.try_emplace(key, memory_, n, store).first->second;
  if (const auto piece = restored_.find(key); piece != restored_.end()) {
    if (piece->second.store != store_name(store) || piece->second.n != n) {
      throw UsageError(
          "codec state",
          std::to_string(n) + " numbers in " + store_name(store) + " for " + describe(key),
          std::to_string(piece->second.n) + " in " + piece->second.store);
    }
    fresh.set_raw(piece->second.bytes);
    restored_.erase(piece);
  } else {
    start_from_adopted(key, fresh);
  }
  return fresh;
}

bool CodecState::Adopted::is_for(const ResidualKey& key) const {
  return role == key.role && tensor == key.tensor && level == key.level &&
         second_hop == key.second_hop && decorator == key.decorator;
}

void CodecState::start_from_adopted(const ResidualKey& key, Residual& residual) {
  for (const Adopted& a : adopted_) {
    if (!a.is_for(key)) continue;
    const std::size_t first = key.part * a.chunk;
    if (first + residual.size() > a.values.size()) {
      throw UsageError("codec state", "residuals of tensors of the same sizes", describe(key));
    }
    residual.start(a.values.f32() + first);
    return;
  }
}

void CodecState::commit(Role role) {
  const std::uint64_t applied = ++applied_[static_cast<std::size_t>(role)];
  for (auto& [key, residual] : residuals_) {
    if (key.role == role) residual.commit(applied);
  }
  std::erase_if(adopted_, [&](const Adopted& a) { return a.role == role; });
  for (const auto& [key, piece] : restored_) {
    if (key.role == role) {
      throw UsageError("codec state", "a codec for every saved residual", describe(key));
    }
  }
}

void CodecState::rollback(Role role) {
  for (auto& [key, residual] : residuals_) {
    if (key.role == role) residual.rollback();
  }
}

void CodecState::clear() {
  residuals_.clear();
  adopted_.clear();
  restored_.clear();
}

std::vector<ResidualPiece> CodecState::pieces() const {
  std::vector<ResidualPiece> pieces;
  for (const auto& [key, residual] : residuals_) {
    if (residual.pending()) {
      throw UsageError("codec state", "no step in hand while it is saved", describe(key));
    }
    const auto raw = residual.raw();
    pieces.push_back({.key = key,
                      .n = residual.size(),
                      .store = store_name(residual.store()),
                      .bytes = {raw.begin(), raw.end()}});
  }
  for (const auto& [key, piece] : restored_) pieces.push_back(piece);
  return pieces;
}

void CodecState::restore(std::span<const ResidualPiece> pieces) {
  if (!residuals_.empty()) {
    throw UsageError("codec state", "an empty state to restore into",
                     std::to_string(residuals_.size()) + " residuals");
  }
  for (const ResidualPiece& piece : pieces) restored_.insert_or_assign(piece.key, piece);
}

void CodecState::adopt(const std::vector<LogicalResidual>& logical, int ranks) {
  for (const LogicalResidual& l : logical) {
    const auto n = static_cast<std::size_t>(ranks);
    Adopted a{.role = l.role,
              .tensor = l.tensor,
              .level = l.level,
              .second_hop = l.second_hop,
              .decorator = l.decorator,
              .chunk = (l.values.size() + n - 1) / n,
              .values = Tensor(memory_, MemoryKind::kResidual, Dtype::kF32, l.values.size())};
    convert(view(l.values), a.values.view());
    adopted_.push_back(std::move(a));
  }
}

std::vector<LogicalResidual> merge_residuals(
    std::span<const std::vector<ResidualPiece>> by_rank,
    const std::function<std::size_t(std::uint32_t tensor)>& numel) {
  using Group = std::tuple<Role, std::uint32_t, std::uint32_t, bool, std::string>;
  struct Sum {
    std::vector<double> sum;
    std::vector<std::uint32_t> senders;
  };
  std::map<Group, Sum> sums;
  for (const auto& pieces : by_rank) {
    for (const ResidualPiece& piece : pieces) {
      const ResidualKey& k = piece.key;
      if (k.receiver) continue;
      const std::size_t elements = numel(k.tensor);
      const std::size_t first = k.part * ((elements + by_rank.size() - 1) / by_rank.size());
      if (first + piece.n > elements) {
        throw UsageError("codec state", std::to_string(elements) + " elements",
                         "a piece that ends at " + std::to_string(first + piece.n));
      }
      Sum& s = sums[{k.role, k.tensor, k.level, k.second_hop, k.decorator}];
      s.sum.resize(elements);
      s.senders.resize(elements);
      std::vector<float> values(piece.n);
      make_codec(piece.store)->decode(piece.bytes, mut_view(values));
      for (std::size_t i = 0; i < piece.n; ++i) {
        s.sum[first + i] += values[i];
        ++s.senders[first + i];
      }
    }
  }
  std::vector<LogicalResidual> merged;
  for (auto& [group, s] : sums) {
    LogicalResidual l{.role = std::get<0>(group),
                      .tensor = std::get<1>(group),
                      .level = std::get<2>(group),
                      .second_hop = std::get<3>(group),
                      .decorator = std::get<4>(group),
                      .values = std::vector<float>(s.sum.size())};
    for (std::size_t i = 0; i < s.sum.size(); ++i) {
      l.values[i] = static_cast<float>(s.sum[i] / std::max(1U, s.senders[i]));
    }
    merged.push_back(std::move(l));
  }
  return merged;
}

}  // namespace zeropp::quant
