#include "experiments/codecs/command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "experiments/codecs/catalog.h"
#include "experiments/codecs/families.h"
#include "experiments/codecs/report.h"
#include "experiments/plugins.h"
#include "experiments/quantity.h"
#include "experiments/safetensors/reader.h"
#include "experiments/text_table.h"
#include "quant/contract/contract.h"
#include "quant/error.h"
#include "quant/registry.h"

namespace zeropp::experiments {
namespace {

constexpr std::uint64_t kMostNumbers = std::uint64_t{1} << 32;

/// The specs asked for; without any, all examples, or those of the plug-ins if there are any.
std::vector<std::string> chosen_specs(const CodecsOptions& o) {
  std::vector<std::string> specs = o.codecs;
  if (specs.empty()) {
    std::vector<std::string> names;
    for (const Plugin& p : plugins()) {
      names.insert(names.end(), p.codecs.begin(), p.codecs.end());
    }
    specs = example_specs(names);
  }
  if (specs.empty()) throw UsageError("--codec", "a spec", "none, nor an example");
  for (const std::string& spec : specs) quant::make_codec(spec);
  return specs;
}

std::vector<quant::Dtype> chosen_dtypes(const CodecsOptions& o) {
  std::vector<quant::Dtype> dtypes;
  for (const std::string& text : o.dtypes) dtypes.push_back(quant::parse_dtype(text));
  return dtypes;
}

/// use(data, file) for every set of numbers that the options name.
template <class Use>
void for_each_family(const CodecsOptions& o, const Use& use) {
  const std::uint64_t n = parse_count(o.n, "--n");
  if (n > kMostNumbers) throw UsageError("--n", "at most 2^32 numbers", o.n);
  std::vector<std::string> families = o.data;
  if (families.empty()) families = {"normal"};
  if (families == std::vector<std::string>{"all"}) {
    families.clear();
    for (const DataFamily& f : data_families()) families.emplace_back(f.name);
  }
  for (const std::string& family : families) family_data(family, quant::Dtype::kF32, 0, 0);
  auto dtypes = chosen_dtypes(o);
  if (dtypes.empty()) dtypes = {quant::Dtype::kF32};
  for (const quant::Dtype dtype : dtypes) {
    for (const std::string& family : families) {
      use(family_codec_data(family, dtype, static_cast<std::size_t>(n), o.ranks));
    }
  }
}

template <class Use>
void for_each_tensor(const CodecsOptions& o, std::ostream& err, const Use& use) {
  const SafetensorsFile file(o.safetensors);
  const std::string pattern = o.tensors.empty() ? "*" : o.tensors;
  std::vector<const SafeTensor*> chosen;
  std::size_t left_out = 0;
  for (const SafeTensor& t : file.tensors()) {
    if (!matches_glob(pattern, t.name)) continue;
    if (t.float_dtype && t.elements > 0) {
      chosen.push_back(&t);
    } else {
      ++left_out;
    }
  }
  if (chosen.empty()) {
    throw UsageError(o.safetensors,
                     "a tensor of F32, BF16 or F16 whose name fits '" + pattern + "'",
                     fmt::format("none of {}", file.tensors().size()));
  }
  if (left_out > 0) {
    err << "zeropp: left out " << left_out << " tensors that are empty or not F32, BF16, F16\n";
  }
  for (const SafeTensor* t : chosen) {
    const quant::Tensor numbers = file.read(*t);
    auto dtypes = chosen_dtypes(o);
    if (dtypes.empty()) dtypes = {*t->float_dtype};
    for (const quant::Dtype dtype : dtypes) {
      use(tensor_codec_data(t->name, numbers, dtype, o.ranks));
    }
  }
}

void check_measure_options(const CodecsOptions& o) {
  if (!o.safetensors.empty() && !o.data.empty()) {
    throw UsageError("--safetensors", "either a file or --data", "both");
  }
  if (o.safetensors.empty() && !o.tensors.empty()) {
    throw UsageError("--tensors", "--safetensors FILE beside it", "none");
  }
  if (o.ranks_per_node < 1 || o.ranks % o.ranks_per_node != 0) {
    throw UsageError("--ranks-per-node", fmt::format("a divisor of the {} ranks", o.ranks),
                     std::to_string(o.ranks_per_node));
  }
  if (!o.picture.empty()) check_picture_name(o.picture);
}

std::vector<CodecMeasurement> measure_all(const CodecsOptions& o, std::ostream& err) {
  const std::vector<std::string> specs = chosen_specs(o);
  std::vector<CodecMeasurement> list;
  const auto measure = [&](const CodecData& data) {
    for (const std::string& spec : specs) {
      if (o.terminal) err << "\r\033[K" << spec << " on " << printable(data.name) << std::flush;
      const auto codec = quant::make_codec(spec);
      list.push_back({.spec = spec,
                      .dtype = data.dtype(),
                      .n = data.n(),
                      .data = data.name,
                      .file = o.safetensors,
                      .ranks = o.ranks,
                      .ranks_per_node = o.ranks_per_node,
                      .error = measure_error(*codec, data, o.ranks_per_node, o.roundings),
                      .speed = measure_speed(*codec, data, o.repetitions)});
    }
  };
  if (o.safetensors.empty()) {
    for_each_family(o, measure);
  } else {
    for_each_tensor(o, err, measure);
  }
  if (o.terminal) err << "\r\033[K" << std::flush;
  return list;
}

int measure_command(const CodecsOptions& o, std::ostream& out, std::ostream& err) {
  check_measure_options(o);
  const auto list = measure_all(o, err);
  out << (o.json ? to_text(measurements_json(list)) + "\n" : measurements_text(list));
  if (!o.csv.empty()) write_atomic(o.csv, measurements_csv(list));
  if (!o.picture.empty()) draw_measurements(list, o.picture);
  return 0;
}

int check_command(const CodecsOptions& o, std::ostream& out) {
  Json list = Json::array();
  int code = 0;
  for (const std::string& spec : chosen_specs(o)) {
    Json failures = Json::array();
    for (const auto& failure : quant::contract::check_contract(spec)) {
      code = 1;
      failures.push_back({{"check", failure.check}, {"found", failure.found}});
      if (!o.json) out << spec << ": " << failure.check << ": " << failure.found << "\n";
    }
    if (!o.json && failures.empty()) {
      out << spec << ": ok, " << quant::contract::check_names().size() << " checks\n";
    }
    list.push_back({{"spec", spec}, {"ok", failures.empty()}, {"failures", failures}});
  }
  if (o.json) out << to_text(list) << "\n";
  return code;
}

}  // namespace

int codecs_command(const CodecsOptions& o, std::ostream& out, std::ostream& err) {
  if (o.check) return check_command(o, out);
  if (o.measure) return measure_command(o, out, err);
  if (!o.codecs.empty()) {
    throw UsageError("--codec", "--measure or --check beside it", "neither");
  }
  out << (o.json ? to_text(catalog_json()) + "\n" : catalog_text());
  return 0;
}

}  // namespace zeropp::experiments
