#include "experiments/verdict/verdict_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "zero/data.h"

namespace zeropp::experiments {
namespace {

Json interval_json(const std::optional<Interval>& i) {
  return i ? Json::array({i->low, i->high}) : Json();
}

}  // namespace

Losses losses_of(const Json& seeds) {
  Losses losses;
  for (const Json& seed : seeds) {
    const auto number = seed["seed"].get<std::uint64_t>();
    if (seed["status"] == "ok") {
      losses[number] = to_double(seed["final_val_loss"]);
    } else if (is_divergence(seed["status"].get<std::string>(), seed.value("message", ""))) {
      losses[number] = std::nullopt;
    }
  }
  return losses;
}

Json verdict_json(const Comparison& c, const Declaration& declared) {
  const bool any = c.difference.n > 0, tested = c.interval.has_value();
  return {{"verdict", name(c.verdict)},
          {"reason", c.reason},
          {"difference", any ? Json(c.difference.mean) : Json()},
          {"interval", interval_json(c.interval)},
          {"interval_95", interval_json(c.interval_95)},
          {"sd", tested ? Json(c.difference.sd) : Json()},
          {"margin", declared.margin},
          {"alpha", declared.alpha},
          {"seeds", c.seeds},
          {"unpaired_seeds", c.unpaired},
          {"failed_seeds", c.failures},
          {"failure_rate_bound",
           failure_bound(c.failures, std::max<std::size_t>(1, c.seeds.size() + c.failures))},
          {"detectable", c.detectable},
          {"perplexity_ratio", any ? Json(std::exp(c.difference.mean)) : Json()},
          {"p_equivalent", tested ? Json(c.p_equivalent) : Json()},
          {"p_non_inferior", tested ? Json(c.p_non_inferior) : Json()},
          {"p_worse", tested ? Json(c.p_worse) : Json()},
          {"p_sign_flip", tested ? Json(c.sign_flip) : Json()},
          {"seeds_needed", c.seeds_needed > 0 ? Json(c.seeds_needed) : Json()}};
}

Json declaration_json(const Declaration& declared, const std::vector<std::uint64_t>& seeds) {
  Json j = {{"endpoint", "final_val_loss"},
            {"margin", declared.margin},
            {"alpha", declared.alpha},
            {"seeds", seeds}};
  const std::string text = to_text(j, -1);
  j["sha256"] = zero::sha256_hex(text.data(), text.size());
  return j;
}

}  // namespace zeropp::experiments
