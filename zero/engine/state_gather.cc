#include "zero/engine/state_gather.h"

#include <algorithm>

namespace zeropp::zero {
namespace {

constexpr hierarchy::CallInfo kCall{.collective = hierarchy::Collective::kOther,
                                    .algorithm = hierarchy::Algorithm::kAllToAll,
                                    .phase = hierarchy::Phase::kCheckpoint,
                                    .role = quant::Role::kControl,
                                    .hop = 0};

std::size_t message_floats(const EngineContext& context, int parts, int rank) {
  std::size_t n = 0;
  for (std::uint32_t t = 0; t < context.tensors().size(); ++t)
    n += context.chunks(t).size(rank);
  return n * static_cast<std::size_t>(parts);
}

void scatter_into(const EngineContext& context, int parts, int rank, const float* message,
                  std::vector<std::vector<float>>& all) {
  for (std::uint32_t t = 0; t < all.size(); ++t) {
    const auto map = context.chunks(t);
    for (int p = 0; p < parts; ++p) {
      std::copy_n(message, map.size(rank),
                  all[t].data() + static_cast<std::size_t>(p) * map.numel + map.begin(rank));
      message += map.size(rank);
    }
  }
}

}  // namespace

std::vector<std::vector<float>> gather_on_root(
    EngineContext& context, int parts,
    const std::function<std::vector<float>(std::uint32_t tensor)>& own) {
  std::vector<float> message;
  message.reserve(message_floats(context, parts, context.rank()));
  for (std::uint32_t t = 0; t < context.tensors().size(); ++t) {
    const std::vector<float> run = own(t);
    message.insert(message.end(), run.begin(), run.end());
  }
  auto& transport = context.comm.transport;
  if (context.rank() != 0) {
    const auto bytes = std::as_bytes(std::span<const float>(message));
    const hierarchy::SendOp send{.peer = 0, .data = bytes, .bytes = {.exact = bytes.size()}};
    if (!bytes.empty()) transport.exchange(kCall, {&send, 1}, {}).release();
    return {};
  }
  std::vector<std::vector<float>> all;
  for (const TensorSpec& t : context.tensors()) {
    all.emplace_back(t.numel * static_cast<std::size_t>(parts));
  }
  scatter_into(context, parts, 0, message.data(), all);
  for (int r = 1; r < context.ranks(); ++r) {
    message.resize(message_floats(context, parts, r));
    const auto bytes = std::as_writable_bytes(std::span<float>(message));
    if (bytes.empty()) continue;
    const hierarchy::RecvOp recv{.peer = r, .into = bytes.data(), .bytes = bytes.size()};
    auto pending = transport.exchange(kCall, {}, {&recv, 1});
    pending.wait();
    pending.release();
    scatter_into(context, parts, r, message.data(), all);
  }
  return all;
}

std::vector<std::vector<std::byte>> gather_bytes_on_root(EngineContext& context,
                                                         std::span<const std::byte> own) {
  auto& transport = context.comm.transport;
  if (context.rank() != 0) {
    const hierarchy::SendOp send{.peer = 0, .data = own, .bytes = {.exact = own.size()}};
    transport.exchange(kCall, {&send, 1}, {}).release();
    return {};
  }
  std::vector<std::vector<std::byte>> all{{own.begin(), own.end()}};
  for (int r = 1; r < context.ranks(); ++r) {
    const hierarchy::RecvOp recv{.peer = r, .bytes = std::size_t{1} << 40, .variable = true};
    auto pending = transport.exchange(kCall, {}, {&recv, 1});
    pending.wait();
    const auto bytes = pending.received(0);
    all.emplace_back(bytes.begin(), bytes.end());
    pending.release();
  }
  return all;
}

}  // namespace zeropp::zero
