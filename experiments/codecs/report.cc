#include "experiments/codecs/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "experiments/text_table.h"

namespace zeropp::experiments {
namespace {

Json row_json(const CodecMeasurement& m) {
  const CodecError& e = m.error;
  const CodecSpeed& s = m.speed;
  Json row = {{"spec", m.spec},
              {"dtype", quant::name(m.dtype)},
              {"n", m.n},
              {"data", m.data},
              {"bits_per_element", e.bits_per_element},
              {"nmse", e.nmse},
              {"sqnr_db", e.sqnr_db},
              {"bias", e.bias},
              {"bias_low", e.bias_low},
              {"bias_high", e.bias_high},
              {"roundings", e.roundings},
              {"cosine", e.cosine},
              {"max_error", e.max_error},
              {"ranks", m.ranks},
              {"ranks_per_node", m.ranks_per_node},
              {"vnmse_one_hop", e.vnmse_one_hop},
              {"vnmse_two_hop", e.vnmse_two_hop},
              {"vnmse_ring", e.vnmse_ring}};
  if (!m.file.empty()) row["file"] = m.file;
  const auto rate = [&](const char* name, const Rate& r) {
    row[fmt::format("{}_gbs", name)] = r.median;
    row[fmt::format("{}_gbs_spread", name)] = r.spread;
  };
  rate("encode", s.encode);
  rate("decode", s.decode);
  rate("reduce_encode", s.reduce_encode);
  rate("memcpy", s.copy);
  return row;
}

std::string shown(double value) { return value == 0 ? "0" : fmt::format("{:.3g}", value); }

std::string shown(const Rate& r) { return fmt::format("{:.2f} ±{:.2f}", r.median, r.spread); }

/// A field as RFC 4180 has it.
std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

Json measurements_json(const std::vector<CodecMeasurement>& list) {
  Json rows = Json::array();
  for (const CodecMeasurement& m : list) rows.push_back(row_json(m));
  return rows;
}

std::string measurements_text(const std::vector<CodecMeasurement>& list) {
  TextTable errors{.header = {"spec", "dtype", "data", "bits", "NMSE", "SQNR dB", "bias", "in",
                              "cosine", "worst", "1 hop", "2 hops", "ring"},
                   .rows = {},
                   .left = 3};
  TextTable rates{
      .header = {"spec", "dtype", "data", "encode", "decode", "reduce_encode", "memcpy"},
      .rows = {},
      .left = 3};
  for (const CodecMeasurement& m : list) {
    const CodecError& e = m.error;
    const std::string dtype(quant::name(m.dtype));
    errors.rows.push_back({m.spec, dtype, m.data, fmt::format("{:.4g}", e.bits_per_element),
                           shown(e.nmse), fmt::format("{:.1f}", e.sqnr_db), shown(e.bias),
                           fmt::format("{} .. {}", shown(e.bias_low), shown(e.bias_high)),
                           fmt::format("{:.6f}", e.cosine), shown(e.max_error),
                           shown(e.vnmse_one_hop), shown(e.vnmse_two_hop),
                           shown(e.vnmse_ring)});
    rates.rows.push_back({m.spec, dtype, m.data, shown(m.speed.encode), shown(m.speed.decode),
                          shown(m.speed.reduce_encode), shown(m.speed.copy)});
  }
  const CodecMeasurement& first = list.front();
  return errors.text() +
         fmt::format(
             "\nbits: sent per number, everything counted. bias: ||E[x^] - x|| / ||x|| "
             "and its 95 % interval. 1 hop, 2 hops, ring: error of the mean\nof {} ranks, "
             "{} a node, ||m^ - m||^2 / ||m||^2.\n\n",
             first.ranks, first.ranks_per_node) +
         rates.text() +
         fmt::format(
             "\nGB of the {} numbers a second, median and half the distance of the "
             "quartiles; reduce_encode: {} wires to one.\n",
             first.file.empty() ? std::to_string(first.n) : "tensor's", first.ranks);
}

std::string measurements_csv(const std::vector<CodecMeasurement>& list) {
  std::string text;
  for (const Json& row : measurements_json(list)) {
    std::string names, values;
    for (const auto& [key, value] : row.items()) {
      const char* comma = names.empty() ? "" : ",";
      names += comma + key;
      values +=
          comma + quoted(value.is_string() ? value.get<std::string>() : to_text(value, -1));
    }
    if (text.empty()) text = names + "\n";
    text += values + "\n";
  }
  return text;
}

}  // namespace zeropp::experiments
