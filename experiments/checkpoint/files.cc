#include "experiments/checkpoint/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "experiments/checkpoint/gpt2.h"
#include "experiments/checkpoint/rank_state.h"
#include "experiments/json_io.h"
#include "experiments/safetensors/reader.h"
#include "experiments/safetensors/writer.h"
#include "quant/error.h"
#include "zero/data.h"

namespace zeropp::experiments {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;
constexpr const char* kState = "zeropp_state.json";

Json state_json(const zero::Checkpoint& c) {
  const zero::LossScaler::State& s = c.loss_scale;
  return {{"zeropp_checkpoint", kFormat},
          {"step", c.step},
          {"version", c.version},
          {"updates", c.updates},
          {"skipped_steps", c.skipped},
          {"consecutive_skips", c.consecutive_skips},
          {"samples", c.samples},
          {"loss_scale",
           {{"scale", s.scale},
            {"iteration", s.iteration},
            {"last_overflow", s.last_overflow},
            {"hysteresis", s.hysteresis}}},
          {"has_momentum", c.has_momentum},
          {"has_variance", c.has_variance},
          {"ranks", c.ranks},
          {"layout", c.layout},
          {"weight_codec", c.weight_codec},
          {"gradient_codecs", c.gradient_codecs},
          {"applied", c.applied}};
}

zero::Checkpoint from_json(const Json& j) {
  zero::Checkpoint c;
  if (j.at("zeropp_checkpoint") != kFormat) {
    throw UsageError("zeropp_checkpoint", std::to_string(kFormat),
                     to_text(j.at("zeropp_checkpoint"), -1));
  }
  j.at("step").get_to(c.step);
  j.at("version").get_to(c.version);
  j.at("updates").get_to(c.updates);
  j.at("skipped_steps").get_to(c.skipped);
  j.at("consecutive_skips").get_to(c.consecutive_skips);
  j.at("samples").get_to(c.samples);
  const Json& s = j.at("loss_scale");
  c.loss_scale = {.scale = to_double(s.at("scale")),
                  .iteration = s.at("iteration").get<std::int64_t>(),
                  .last_overflow = s.at("last_overflow").get<std::int64_t>(),
                  .hysteresis = s.at("hysteresis").get<int>()};
  j.at("has_momentum").get_to(c.has_momentum);
  j.at("has_variance").get_to(c.has_variance);
  j.at("ranks").get_to(c.ranks);
  j.at("layout").get_to(c.layout);
  j.at("weight_codec").get_to(c.weight_codec);
  j.at("gradient_codecs").get_to(c.gradient_codecs);
  j.at("applied").get_to(c.applied);
  return c;
}

/// Runs of `states` (1: m, 2: v) under "m." and "v.".
void write_moments(const fs::path& path, const zero::Model& model, const zero::Checkpoint& c) {
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const char* prefix, std::size_t run) {
    for (std::size_t t = 0; t < c.state.size(); ++t) {
      const zero::TensorSpec& spec = model.tensors()[t];
      const std::span<const float> x(c.state[t].data() + run * spec.numel, spec.numel);
      tensors.push_back({.name = prefix + spec.name,
                         .dtype = "F32",
                         .shape = {spec.shape.begin(), spec.shape.end()},
                         .data = std::as_bytes(x)});
    }
  };
  if (c.has_momentum) add("m.", 1);
  if (c.has_variance) add("v.", 2);
  write_safetensors(path, std::move(tensors), {{"format", "pt"}});
}

void read_moments(const fs::path& path, const zero::Model& model, zero::Checkpoint& c) {
  const SafetensorsFile file(path);
  const auto take = [&](const char* prefix, std::size_t run) {
    for (std::size_t t = 0; t < c.state.size(); ++t) {
      const zero::TensorSpec& spec = model.tensors()[t];
      const SafeTensor* found = file.find(prefix + spec.name);
      if (found == nullptr || found->dtype != "F32" || found->elements != spec.numel) {
        throw UsageError(
            "checkpoint " + path.string(),
            fmt::format("'{}{}' with {} elements of F32", prefix, spec.name, spec.numel),
            found ? fmt::format("{} of {}", found->elements, found->dtype)
                  : std::string("none"));
      }
      const auto bytes = file.read_bytes(*found);
      std::memcpy(c.state[t].data() + run * spec.numel, bytes.data(), bytes.size());
    }
  };
  if (c.has_momentum) take("m.", 1);
  if (c.has_variance) take("v.", 2);
}

/// Masters with room for moments, which are zero.
std::vector<std::vector<float>> states_of(std::vector<std::vector<float>> masters) {
  for (auto& x : masters) x.resize(3 * x.size());
  return masters;
}

}  // namespace

void write_checkpoint(const fs::path& dir, const zero::GptConfig& config,
                      const zero::Checkpoint& c,
                      const std::function<void(const fs::path& temporary)>& more) {
  const auto model = zero::make_gpt(config);
  const fs::path temporary = dir.string() + fmt::format(".tmp{}", ::getpid());
  std::error_code ec;
  try {
    fs::remove_all(temporary, ec);
    make_directory(temporary);
    write_gpt2(temporary, config, c.state);
    write_moments(temporary / "optimizer.safetensors", *model, c);
    write_rank_state(temporary / "codec_state.safetensors", *model, c);
    if (more) more(temporary);
    write_atomic(temporary / kState, to_text(state_json(c)) + "\n");
    sync_to_disk(temporary / kState);
    sync_to_disk(temporary);
    fs::remove_all(dir, ec);  // Of an earlier run.
    fs::rename(temporary, dir, ec);
    if (ec) {
      throw UsageError("output", "a folder that can be written",
                       dir.string() + ": " + ec.message());
    }
    sync_to_disk(dir.parent_path());
  } catch (...) {
    fs::remove_all(temporary, ec);
    throw;
  }
}

zero::Checkpoint read_checkpoint(const fs::path& dir, const zero::GptConfig& config) {
  const auto model = zero::make_gpt(config);
  zero::Checkpoint c;
  try {
    c = from_json(read_json(dir / kState));
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& e) {
    throw UsageError("checkpoint " + (dir / kState).string(), "the state that zeropp wrote",
                     e.what());
  }
  c.state = states_of(read_gpt2(dir, config));
  read_moments(dir / "optimizer.safetensors", *model, c);
  read_rank_state(dir / "codec_state.safetensors", *model, c);
  return c;
}

zero::Checkpoint load_checkpoint(const fs::path& path, const zero::GptConfig& config,
                                 bool weights_only) {
  if (!weights_only && fs::exists(path / kState)) return read_checkpoint(path, config);
  zero::Checkpoint c;
  c.state = states_of(read_gpt2(path, config));
  c.has_momentum = c.has_variance = true;  // New ones: nothing is missing.
  return c;
}

std::string checkpoint_sha256(const fs::path& path) {
  zero::Sha256 sha;
  const auto add = [&](const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    std::vector<char> buffer(std::size_t{1} << 20);
    while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
           in.gcount() > 0) {
      sha.update(buffer.data(), static_cast<std::size_t>(in.gcount()));
    }
  };
  if (!fs::is_directory(path)) {
    add(path);
  } else {
    for (const char* name :
         {"model.safetensors", "optimizer.safetensors", "codec_state.safetensors", kState}) {
      if (fs::exists(path / name)) add(path / name);
    }
  }
  return sha.hex();
}

}  // namespace zeropp::experiments
