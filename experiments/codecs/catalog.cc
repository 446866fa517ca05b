#include "experiments/codecs/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "experiments/text_table.h"
#include "quant/registry.h"

namespace zeropp::experiments {
namespace {

constexpr std::size_t kManyNumbers = std::size_t{1} << 24;  // Where headers count no more.

double bits_per_element(const quant::Codec& codec) {
  return 8.0 * static_cast<double>(codec.wire_bytes(kManyNumbers).total()) /
         static_cast<double>(kManyNumbers);
}

Json traits_json(const std::string& spec) {
  const auto codec = quant::make_codec(spec);
  const quant::CodecTraits t = codec->traits();
  return {{"spec", spec},
          {"canonical", codec->spec()},
          {"rate", t.fixed_rate ? "fixed" : "variable"},
          {"bits_per_element", bits_per_element(*codec)},
          {"exact", t.exact},
          {"lossless", t.lossless},
          {"unbiased", t.unbiased},
          {"deterministic", t.deterministic},
          {"stateful", t.stateful},
          {"receiver_state", t.receiver_state},
          {"sums_transformed", t.sums_transformed},
          {"difference", t.difference},
          {"block", t.block == quant::kWholeSpan ? Json("span") : Json(t.block)},
          {"nan", nan_policy_name(t.nan)},
          {"max_error", t.max_error},
          {"floor", t.floor},
          {"contraction", t.contraction}};
}

std::string yes(bool value) { return value ? "yes" : "-"; }

std::vector<std::string> traits_row(const std::string& spec) {
  const auto codec = quant::make_codec(spec);
  const quant::CodecTraits t = codec->traits();
  return {spec,
          fmt::format("{}{:.3f}", t.fixed_rate ? "" : "<= ", bits_per_element(*codec)),
          t.block == quant::kWholeSpan ? "span" : std::to_string(t.block),
          t.lossless ? "lossless" : yes(t.exact),
          yes(t.unbiased),
          yes(t.deterministic),
          yes(t.stateful || t.receiver_state),
          nan_policy_name(t.nan)};
}

}  // namespace

std::string nan_policy_name(quant::NanPolicy policy) {
  return policy == quant::NanPolicy::kPreserve ? "preserve" : "poison block";
}

std::vector<std::string> example_specs(const std::vector<std::string>& entries) {
  std::vector<std::string> specs;
  for (const quant::CodecEntry& e : quant::codec_entries()) {
    const bool wanted =
        entries.empty() || std::find(entries.begin(), entries.end(), e.name) != entries.end();
    if (wanted) specs.insert(specs.end(), e.examples.begin(), e.examples.end());
  }
  return specs;
}

std::string catalog_text() {
  std::string text;
  for (const quant::CodecEntry& e : quant::codec_entries()) {
    text += fmt::format("{}{}  {}\n", e.name, e.decorate ? "|..." : "", e.help);
    for (const quant::CodecParam& p : e.params) {
      text += fmt::format("    {} = {}  ({})\n", p.key, p.fallback, p.help);
    }
  }
  TextTable table{.header = {"spec", "bits", "block", "exact", "unbiased", "deterministic",
                             "state", "non-finite"},
                  .rows = {}};
  for (const std::string& spec : example_specs()) table.rows.push_back(traits_row(spec));
  return text + "\n" + table.text() +
         "\nname:key=value,... is a codec, name(key=value,...)|codec one behind a decorator. "
         "bits: "
         "sent per number of 2^24,\nscales and padding counted. block: numbers that share "
         "metadata. poison block: a non-finite number makes its\nwhole decoded block "
         "NaN.\npowersgd:rank=R is an algorithm of exchanges, no codec: "
         "zeropp.codecs.gradients of a run takes it.\n";
}

Json catalog_json() {
  Json list = Json::array();
  for (const quant::CodecEntry& e : quant::codec_entries()) {
    Json params = Json::array(), examples = Json::array();
    for (const quant::CodecParam& p : e.params) {
      params.push_back({{"key", p.key}, {"default", p.fallback}, {"help", p.help}});
    }
    for (const std::string& spec : e.examples) examples.push_back(traits_json(spec));
    list.push_back({{"name", e.name},
                    {"help", e.help},
                    {"decorator", static_cast<bool>(e.decorate)},
                    {"params", params},
                    {"examples", examples}});
  }
  return list;
}

}  // namespace zeropp::experiments
