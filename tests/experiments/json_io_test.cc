// Reading and writing JSON: floats keep their bits, files are whole or absent.
#include "experiments/json_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "quant/error.h"

namespace zeropp::experiments {
namespace {

namespace fs = std::filesystem;

std::uint64_t bits(double x) { return std::bit_cast<std::uint64_t>(x); }

TEST(JsonIo, FloatsRoundTripBitForBit) {
  std::vector<double> values = {0.0,
                                -0.0,
                                0.1,
                                1.0 / 3,
                                1e300,
                                5e-324,
                                2.3456789,
                                1e22,
                                123456789.0,
                                std::numeric_limits<double>::max(),
                                std::numeric_limits<double>::min()};
  std::uint64_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double x = std::bit_cast<double>(state);
    if (std::isfinite(x)) values.push_back(x);
  }
  for (const double x : values) {
    const Json back = parse_json(to_text(Json{{"x", x}}), "test");
    EXPECT_EQ(bits(to_double(back["x"])), bits(x)) << float_text(x);
    EXPECT_TRUE(back["x"].is_number_float()) << float_text(x);
  }
}

TEST(JsonIo, NonFiniteAreStrings) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(to_text(Json::array({std::nan(""), inf, -inf}), -1), R"(["nan", "inf", "-inf"])");
  EXPECT_TRUE(std::isnan(to_double("nan")));
  EXPECT_EQ(to_double("-inf"), -inf);
  EXPECT_THROW(to_double("1.0"), UsageError);
}

TEST(JsonIo, OneLineForLines) {
  const Json value = {{"a", {1, 2}}, {"b", {{"c", "x\ny"}}}};
  EXPECT_EQ(to_text(value, -1), R"({"a": [1, 2], "b": {"c": "x\ny"}})");
  EXPECT_EQ(parse_json(to_text(value), "test"), value);
}

TEST(JsonIo, DuplicateKeysAreErrors) {
  EXPECT_NO_THROW(
      parse_json(R"({"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 2}]})", "t"));
  EXPECT_THROW(parse_json(R"({"a": [{"x": 1, "y": 2, "x": 3}]})", "t"), UsageError);
}

TEST(JsonIo, WriteAtomicLeavesNoPieces) {
  const fs::path dir =
      fs::temp_directory_path() / ("zeropp-json-" + std::to_string(::getpid()));
  make_directory(dir);
  write_atomic(dir / "a.json", "first");
  write_atomic(dir / "a.json", "second");
  EXPECT_EQ(read_text(dir / "a.json"), "second");
  // A folder in the way: the rename fails, and the temporary file goes.
  fs::create_directories(dir / "b.json" / "inside");
  EXPECT_THROW(write_atomic(dir / "b.json", "text"), UsageError);
  EXPECT_THROW(write_atomic(dir / "missing" / "c.json", "text"), UsageError);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), {}), 2);
  fs::create_symlink("a.json", dir / "link");
  write_atomic(dir / "link", "third");
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(read_text(dir / "a.json"), "third");
  EXPECT_THROW(write_atomic("/dev/full", "text"), UsageError);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_THROW(make_directory(dir / "a.json" / "x"), UsageError);
  EXPECT_THROW(read_text(dir), UsageError);
  fs::remove_all(dir);
}

}  // namespace
}  // namespace zeropp::experiments
