#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "experiments/safetensors/reader.h"
#include "quant/convert.h"
#include "quant/error.h"
#include "tests/experiments/temp_dir.h"

namespace zeropp::experiments {
namespace {

using testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data,
                    std::uint64_t claimed_extra = 0) {
  const std::uint64_t size = header.size() + claimed_extra;
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + header + data;
}

std::string error_of(const std::string& bytes) {
  try {
    parse_safetensors(bytes, "x.safetensors");
  } catch (const UsageError& e) {
    return e.what();
  }
  return "no error";
}

std::string entry(const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}}";
}

TEST(Safetensors, ReadsEveryFloatDtypeByName) {
  const TempDir dir;
  const float f32[] = {1.5F, -2};
  std::string data(reinterpret_cast<const char*>(f32), sizeof f32);
  for (const float x : {3.0F, 0.5F}) {
    const std::uint16_t bits = quant::bf16_bits(x);
    data.append(reinterpret_cast<const char*>(&bits), 2);
  }
  const std::uint16_t half = quant::f16_bits(-0.25F);
  data.append(reinterpret_cast<const char*>(&half), 2);
  data.append(8, '\1');
  const SafetensorsFile file(dir.write("a.safetensors", file_of(R"({
    "__metadata__": {"format": "pt"},
    "b": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [8, 12]},
    "a.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "half": {"dtype": "F16", "shape": [], "data_offsets": [12, 14]},
    "none": {"dtype": "F32", "shape": [0, 7], "data_offsets": [14, 14]},
    "ids": {"dtype": "I64", "shape": [1], "data_offsets": [14, 22]}}   )",
                                                                data)));
  std::vector<float> all;
  std::vector<std::string> other;
  for (const SafeTensor& t : file.tensors()) {
    if (!t.float_dtype) {
      other.push_back(t.name);
      EXPECT_THROW(file.read(t), UsageError);
      continue;
    }
    const quant::Tensor x = file.read(t);
    EXPECT_EQ(x.dtype(), t.float_dtype);
    std::vector<float> numbers(x.size());
    quant::convert(x.view(), quant::mut_view(numbers));
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  EXPECT_THAT(all, testing::ElementsAre(3, 0.5, 1.5, -2, -0.25));
  EXPECT_THAT(other, testing::ElementsAre("ids"));
  EXPECT_TRUE(matches_glob("*.weight", "a.weight"));
  EXPECT_FALSE(matches_glob("*.weight", "a.bias"));
}

TEST(Safetensors, ShapesMakeSizesInSixtyFourBits) {
  // 2^33 numbers of 4 bytes in a file that says it has them.
  const auto tensors = parse_safetensors_header(
      entry("F32", "[65536, 131072]", "[0, 34359738368]"), std::uint64_t{1} << 35, "x");
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0].elements, std::uint64_t{1} << 33);
  EXPECT_EQ(tensors[0].bytes, std::uint64_t{1} << 35);
  // Products that wrap round 64 bits to what the offsets say.
  for (const char* shape :
       {"[4294967296, 4294967296]", "[9223372036854775808, 2]", "[4611686018427387904]"}) {
    EXPECT_THAT(error_of(file_of(entry("F32", shape, "[0, 0]"), "")), HasSubstr("64 bits"))
        << shape;
  }
}

TEST(Safetensors, DamagedFilesAreToldApart) {
  const std::string data(8, 'x');
  const std::pair<std::string, const char*> cases[] = {
      {"", "0 bytes"},
      {"short", "5 bytes"},
      {file_of("{}", "", 1), "header of 3 bytes in a file of 10"},
      {file_of("{}", "", ~std::uint64_t{0} - 10), "header of"},
      {file_of("{", ""), "valid JSON"},
      {file_of("[]", ""), "JSON object"},
      {file_of(R"({"w": 3})", ""), "tensor 'w'"},
      {file_of(R"({"w": {"shape": [1]}})", ""), "key dtype"},
      {file_of(entry("F31", "[2]", "[0, 8]"), data), "dtype of safetensors, found \"F31\""},
      {file_of(entry("F32", "[-2]", "[0, 8]"), data), "shape to be whole numbers"},
      {file_of(entry("F32", "2", "[0, 8]"), data), "shape to be whole numbers"},
      {file_of(entry("F32", "[2.0]", "[0, 8]"), data), "shape to be whole numbers"},
      {file_of(entry("F32", "[2]", "[0, 9]"), data), "the file's 8 bytes of data"},
      {file_of(entry("F32", "[2]", "[8, 0]"), data), "the file's 8 bytes of data"},
      {file_of(entry("F32", "[2]", "[0]"), data), "the file's 8 bytes of data"},
      {file_of(entry("F32", "[1]", "[0, 8]"), data), "4 bytes apart"},
      {file_of(entry("F32", "[2]", "[1, 8]"), data), "8 bytes apart"},
      {file_of(R"({"w":{}, "w":{}})", ""), "twice"}};
  for (const auto& [bytes, words] : cases) {
    EXPECT_THAT(error_of(bytes), testing::AllOf(HasSubstr("x.safetensors"), HasSubstr(words)))
        << bytes;
  }
}

TEST(Safetensors, FilesThatAreNotThere) {
  const TempDir dir;
  EXPECT_THROW(SafetensorsFile(dir.file("absent")), UsageError);
  EXPECT_THROW(SafetensorsFile(dir.path()), UsageError);
  const std::string path =
      dir.write("cut", file_of(entry("F32", "[2]", "[0, 8]"), std::string(8, 'x')));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THROW(file.read(file.tensors()[0]), UsageError);
}

}  // namespace
}  // namespace zeropp::experiments
