#include "zero/engine/replicas.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "quant/error.h"

namespace zeropp::zero {
namespace {

/// FNV-1a over 64-bit words (and the tail), with a final mix: any flipped bit changes it.
std::uint64_t mix_hash(std::uint64_t h, std::span<const std::byte> bytes) {
  constexpr std::uint64_t prime = 0x100000001B3ULL;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    h = (h ^ word) * prime;
    h ^= h >> 29;
  }
  for (; i < bytes.size(); ++i) h = (h ^ static_cast<std::uint64_t>(bytes[i])) * prime;
  return h ^ (h >> 32);
}

}  // namespace

void check_replicas(EngineContext& context, const std::string& what, int modulus,
                    std::span<const quant::ConstView> views) {
  if (modulus >= context.ranks()) return;  // No two ranks hold the same.
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const auto& view : views) hash = mix_hash(hash, view.as_bytes());
  const double mine[2] = {static_cast<double>(hash >> 32),
                          static_cast<double>(hash & 0xFFFFFFFFU)};
  std::vector<double> all(2 * static_cast<std::size_t>(context.ranks()));
  hierarchy::gather_scalars(context.comm, context.phase, quant::Role::kControl, mine, all);
  for (int r = modulus; r < context.ranks(); ++r) {
    const auto a = static_cast<std::size_t>(2 * (r % modulus));
    const auto b = static_cast<std::size_t>(2 * r);
    if (all[a] != all[b] || all[a + 1] != all[b + 1]) {
      throw TransportError(
          fmt::format("[replicas] {} differ between ranks {} and {} in {} of step {}", what,
                      r % modulus, r, hierarchy::name(context.phase), context.step));
    }
  }
}

}  // namespace zeropp::zero
