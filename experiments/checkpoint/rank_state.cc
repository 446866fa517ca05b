#include "experiments/checkpoint/rank_state.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "experiments/json_io.h"
#include "experiments/safetensors/reader.h"
#include "experiments/safetensors/writer.h"
#include "quant/error.h"

namespace zeropp::experiments {
namespace {

std::string residual_name(std::size_t rank, std::size_t i) {
  return fmt::format("residual.{}.{}", rank, i);
}
std::string error_name(std::size_t rank, const std::string& tensor) {
  return fmt::format("powersgd.{}.error.{}", rank, tensor);
}

Json key_json(const quant::ResidualPiece& p, const zero::Model& model) {
  return {{"role", quant::name(p.key.role)},
          {"tensor", model.tensors().at(p.key.tensor).name},
          {"part", p.key.part},
          {"level", p.key.level},
          {"second_hop", p.key.second_hop},
          {"receiver", p.key.receiver},
          {"source", p.key.source},
          {"decorator", p.key.decorator},
          {"elements", p.n},
          {"store", p.store}};
}

std::uint32_t tensor_index(const zero::Model& model, const std::string& name,
                           const std::string& area) {
  for (std::uint32_t t = 0; t < model.tensors().size(); ++t) {
    if (model.tensors()[t].name == name) return t;
  }
  throw UsageError(area, "a tensor of the model", "'" + name + "'");
}

quant::ResidualPiece piece_from(const Json& json, const zero::Model& model,
                                const std::string& area) {
  quant::ResidualPiece p;
  const auto role = json.at("role").get<std::string>();
  p.key.role = role == "weight" ? quant::Role::kWeight : quant::Role::kGradient;
  if (role != quant::name(p.key.role)) throw UsageError(area, "a role with residuals", role);
  p.key.tensor = tensor_index(model, json.at("tensor").get<std::string>(), area);
  p.key.part = json.at("part").get<std::uint32_t>();
  p.key.level = json.at("level").get<std::uint32_t>();
  p.key.second_hop = json.at("second_hop").get<bool>();
  p.key.receiver = json.at("receiver").get<bool>();
  p.key.source = json.at("source").get<std::uint32_t>();
  p.key.decorator = json.at("decorator").get<std::string>();
  p.n = json.at("elements").get<std::size_t>();
  p.store = json.at("store").get<std::string>();
  return p;
}

std::vector<float> read_floats(const SafetensorsFile& file, const SafeTensor& tensor) {
  const auto bytes = file.read_bytes(tensor);
  std::vector<float> x(bytes.size() / sizeof(float));
  if (!x.empty()) std::memcpy(x.data(), bytes.data(), bytes.size());
  return x;
}

void read_residuals(const SafetensorsFile& file, const Json& keys, const zero::Model& model,
                    const std::string& area, zero::Checkpoint& c) {
  for (std::size_t r = 0; r < keys.size(); ++r) {
    auto& pieces = c.residuals.emplace_back();
    for (std::size_t i = 0; i < keys[r].size(); ++i) {
      pieces.push_back(piece_from(keys[r][i], model, area));
      const SafeTensor* data = file.find(residual_name(r, i));
      if (data == nullptr) throw UsageError(area, residual_name(r, i), "no such tensor");
      pieces.back().bytes = file.read_bytes(*data);
    }
  }
}

void read_low_rank(const SafetensorsFile& file, std::size_t ranks, const zero::Model& model,
                   zero::Checkpoint& c) {
  for (std::size_t r = 0; r < ranks; ++r) {
    zero::LowRankState& state = c.low_rank.emplace_back();
    for (const zero::TensorSpec& spec : model.tensors()) {
      const SafeTensor* error = file.find(error_name(r, spec.name));
      const SafeTensor* right = file.find("powersgd.right." + spec.name);
      state.error.push_back(error ? read_floats(file, *error) : std::vector<float>());
      state.right.push_back(right ? read_floats(file, *right) : std::vector<float>());
    }
  }
}

}  // namespace

void write_rank_state(const std::filesystem::path& path, const zero::Model& model,
                      const zero::Checkpoint& c) {
  std::vector<TensorToWrite> tensors;
  const auto floats = [&](std::string name, const std::vector<float>& x) {
    if (x.empty()) return;
    tensors.push_back({.name = std::move(name),
                       .dtype = "F32",
                       .shape = {x.size()},
                       .data = std::as_bytes(std::span<const float>(x))});
  };
  for (std::size_t t = 0; t < c.copies.tensors.size(); ++t) {
    floats("copies." + model.tensors()[t].name, c.copies.tensors[t]);
  }
  Json keys = Json::array();
  for (std::size_t r = 0; r < c.residuals.size(); ++r) {
    Json of_rank = Json::array();
    for (std::size_t i = 0; i < c.residuals[r].size(); ++i) {
      const quant::ResidualPiece& p = c.residuals[r][i];
      of_rank.push_back(key_json(p, model));
      const bool fp32 = p.store == "fp32";
      tensors.push_back({.name = residual_name(r, i),
                         .dtype = fp32 ? "F32" : "U8",
                         .shape = {fp32 ? p.n : p.bytes.size()},
                         .data = p.bytes});
    }
    keys.push_back(std::move(of_rank));
  }
  for (std::size_t r = 0; r < c.low_rank.size(); ++r) {
    for (std::size_t t = 0; t < model.tensors().size(); ++t) {
      const std::string& name = model.tensors()[t].name;
      floats(error_name(r, name), c.low_rank[r].error[t]);
      if (r == 0) floats("powersgd.right." + name, c.low_rank[0].right[t]);
    }
  }
  write_safetensors(path, std::move(tensors),
                    {{"format", "pt"},
                     {"residuals", to_text(keys, -1)},
                     {"copy_versions", to_text(Json(c.copies.versions), -1)},
                     {"powersgd_ranks", std::to_string(c.low_rank.size())}});
}

void read_rank_state(const std::filesystem::path& path, const zero::Model& model,
                     zero::Checkpoint& c) {
  const std::string area = "checkpoint " + path.string();
  const SafetensorsFile file(path);
  try {
    const auto& metadata = file.metadata();
    c.copies.versions =
        parse_json(metadata.at("copy_versions"), area).get<std::vector<std::int64_t>>();
    if (!c.copies.versions.empty()) {
      for (const zero::TensorSpec& spec : model.tensors()) {
        const SafeTensor* copy = file.find("copies." + spec.name);
        c.copies.tensors.push_back(copy ? read_floats(file, *copy) : std::vector<float>());
      }
    }
    read_residuals(file, parse_json(metadata.at("residuals"), area), model, area, c);
    read_low_rank(file, std::stoul(metadata.at("powersgd_ranks")), model, c);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& e) {
    throw UsageError(area, "the state of codecs that zeropp wrote", e.what());
  }
}

}  // namespace zeropp::experiments
