#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "experiments/run_config.h"
#include "quant/error.h"

namespace zeropp::experiments {

/// The smallest config: 2 nodes of 4 ranks, everything else by default.
inline constexpr const char* kSmall = R"({"train_micro_batch_size_per_gpu": 2})";

inline RunConfig parse(const std::string& text,
                       const std::vector<std::string>& overrides = {}) {
  return parse_run_config(text, "test.json", overrides);
}

inline VariantConfig parse_one(const std::string& text,
                               const std::vector<std::string>& overrides = {}) {
  RunConfig run = parse(text, overrides);
  EXPECT_EQ(run.variants.size(), 1u);
  return run.variants.at(0);
}

/// The message of the UsageError, one line.
inline std::string error_of(const std::string& text,
                            const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), testing::Not(testing::HasSubstr("\n")));
    return e.what();
  }
  return "no error";
}

/// kSmall with more text before its closing brace.
inline std::string with(const std::string& more) {
  return R"({"train_micro_batch_size_per_gpu": 2, )" + more + "}";
}

}  // namespace zeropp::experiments
