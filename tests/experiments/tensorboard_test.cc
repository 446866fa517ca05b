// Event files byte for byte, against golden vectors (shared/formats.md, 1.5).
#include "experiments/tensorboard.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace zeropp::experiments {
namespace {

std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const unsigned char b : bytes) {
    out += kDigits[b >> 4];
    out += kDigits[b & 15];
  }
  return out;
}

TEST(Tensorboard, VersionIsTheGoldenVector) {
  EXPECT_EQ(hex(tensorboard::record(tensorboard::version_event(1.0))),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a32"
            "86bf577a");
}

TEST(Tensorboard, ScalarIsTheGoldenVector) {
  EXPECT_EQ(hex(tensorboard::record(tensorboard::scalar_event(2.0, 7, "train/loss", 2.5))),
            "200000000000000029eda95009000000000000004010072a130a110a0a747261696e2f6c"
            "6f737315000020409f7ba4f7");
}

TEST(Tensorboard, LongNumbersTakeSeveralBytes) {
  const std::string event = tensorboard::scalar_event(0, 300, std::string(200, 't'), 0);
  EXPECT_EQ(hex(event.substr(9, 3)), "10ac02");               // Step 300 as a varint.
  EXPECT_EQ(hex(event.substr(12, 9)), "2ad3010ad0010ac801");  // Lengths 211, 208, 200.
}

}  // namespace
}  // namespace zeropp::experiments
