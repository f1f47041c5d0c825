// The safetensors reader against files that other programs disagree on, and the writer against the reader.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/describe.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/support.h"
#include "support/paths.h"

namespace baleen::checkpoint::testing {
namespace {

namespace fs = std::filesystem;

// A file's bytes from a header and data.
std::string file_of(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + data;
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "some.safetensors");
}

void expect_refused(const std::string& file, const std::vector<std::string>& words) {
  SCOPED_TRACE(file.substr(0, 300));
  std::vector<std::string> all = words;
  all.push_back("some.safetensors");
  expect_error([&] { parse(file); }, ExitCode::bad_data, all);
}

const std::string one_float = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";

TEST(Safetensors, VectorsGetTheirVerdicts) {
  const fs::path folder = baleen::testing::shared_data("safetensors");
  if (folder.empty()) GTEST_SKIP() << "data/safetensors of the shared folder is not there";
  // What the message must say, beside being a refusal.
  const std::map<std::string, std::string> reasons{{"01_dup_name_identical", "duplicate key 'a'"},
                                                   {"02_dup_name_first_bogus_last_good", "duplicate key 'a'"},
                                                   {"04_dup___metadata__", "duplicate key '__metadata__'"},
                                                   {"06_dup_dtype_in_tensor", "duplicate key 'dtype'"},
                                                   {"08_non-string_metadata", "__metadata__ 'x' is not a string"},
                                                   {"10_leading_spaces", "does not start with '{'"},
                                                   {"12_trailing_NUL", "NUL"},
                                                   {"14_negative_offset", "data_offsets [-8,0]"},
                                                   {"16_float_dim_2.0", "dimension 2.0"},
                                                   {"18_unknown_dtype", "unknown dtype 'Q4'"},
                                                   {"20_overlap", "overlap"},
                                                   {"22_truncated_data", "truncated"},
                                                   {"24_shape_overflow", "overflows"},
                                                   {"30_n_gt_file", "truncated"},
                                                   {"32_n_264-1", "not a safetensors file"},
                                                   {"36_header_", "does not start with '{'"},
                                                   {"38_git_lfs_pointer", "Git LFS pointer"}};
  const auto verdicts = parse_json(read_text(folder / "expected.json"), "test");
  EXPECT_GE(verdicts.size(), 20u);
  for (const auto& [name, verdict] : verdicts.items()) {
    SCOPED_TRACE(name);
    if (verdict == "accept") {
      EXPECT_NO_THROW(describe_safetensors(folder / name));
    } else {
      const auto reason = reasons.find(fs::path(name).stem().string());
      expect_error([&, file = name] { describe_safetensors(folder / file); }, ExitCode::bad_data,
                   {name, reason == reasons.end() ? "no reason in this test for" : reason->second});
    }
  }
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  EXPECT_TRUE(parse(file_of("{}")).tensors.empty());
  EXPECT_EQ(parse(file_of(one_float + "   ", "abcd")).tensors.size(), 1u);
  EXPECT_EQ(parse(file_of(R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", "12345678")).tensors[0].elements(), 1);
  EXPECT_EQ(parse(file_of(R"({"e":{"dtype":"F64","shape":[3,0],"data_offsets":[0,0]}})")).tensors[0].elements(), 0);
  EXPECT_EQ(
      parse(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":{"deep":[[1.5,null,true]]}}})", "abcd")).tensors.size(),
      1u);
  EXPECT_EQ(parse(file_of(R"({"__metadata__":{"k":"v"},"../../etc/passwd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"))
                .metadata.at("k"),
            "v");
  // In the order of the data, whatever the order of the names; an empty tensor may stand between.
  const auto header = parse(file_of(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"c":{"dtype":"I64","shape":[0],"data_offsets":[1,1]}})",
      "xyz"));
  EXPECT_EQ(header.tensors[0].name + header.tensors[1].name + header.tensors[2].name, "bca");
  for (const std::string type : {"F64:8", "F32:4", "F16:2", "BF16:2", "I64:8", "I32:4", "I16:2", "I8:1", "U64:8", "U32:4", "U16:2", "U8:1",
                                 "BOOL:1", "F8_E4M3:1", "F8_E5M2:1"}) {
    const std::string name = type.substr(0, type.find(':')), bytes = type.substr(type.find(':') + 1);
    const auto parsed = parse(file_of(R"({"a":{"dtype":")" + name + R"(","shape":[1],"data_offsets":[0,)" + bytes + "]}}",
                                      std::string(static_cast<std::size_t>(std::stoi(bytes)), 'x')));
    EXPECT_EQ(stored_type_name(parsed.tensors[0].type), name);
  }
}

TEST(Safetensors, RefusesEverythingElse) {
  expect_refused("", {"truncated: 0 bytes"});
  expect_refused("1234567", {"truncated: 7 bytes"});
  expect_refused(std::string(8, '\0'), {"does not start with '{'"});
  std::string long_header = file_of(std::string(8, ' '));
  const std::uint64_t over = safetensors_header_limit + 1;
  std::memcpy(long_header.data(), &over, sizeof over);
  expect_refused(long_header, {"100000001"});
  expect_refused(file_of("\xEF\xBB\xBF" + one_float, "abcd"), {"byte-order mark"});
  expect_refused(file_of(one_float + std::string(2, '\0'), "abcd"), {"NUL"});
  expect_refused(file_of(one_float + "x", "abcd"), {"malformed JSON"});
  expect_refused(file_of(one_float.substr(0, 20)), {"malformed JSON"});
  expect_refused(file_of("{\"\xff\xfe\":1}"), {"malformed JSON", "UTF-8"});
  expect_refused(file_of("{\"\\ud800\":1}"), {"malformed JSON"});
  expect_refused(file_of(one_float, "abc"), {"truncated", "4 bytes", "has 3"});
  expect_refused(file_of(one_float, "abcde"), {"1 trailing bytes"});
  expect_refused(file_of("{}", "a"), {"1 trailing bytes"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "abcdefgh"), {"hole before tensor 'a'"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", "abcdefgh"), {"takes 4 bytes"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})", "abcdefgh"), {"data_offsets are [8, 4]"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})"), {"not two"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", "abcd"), {"not two"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4.0]}})", "abcd"), {"not two"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e400]}})", "abcd"), {"malformed JSON"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "abcd"), {"dimension -1"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "abcd"), {"dimension \"1\""});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}})", "abcd"), {"dimension true"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})"), {"overflows"});
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}})"), {"overflows"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":4,"data_offsets":[0,4]}})", "abcd"), {"shape has the wrong type (number)"});
  expect_refused(file_of(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", "abcd"), {"dtype has the wrong type"});
  expect_refused(file_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "abcd"), {"'a' has no dtype"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "abcd"), {"'a' has no shape"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1]}})"), {"'a' has no data_offsets"});
  expect_refused(file_of(R"({"a":[]})"), {"not described by an object"});
  expect_refused(file_of(R"({"__metadata__":[]})"), {"__metadata__ is not an object"});
  expect_refused(file_of(R"({"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", "abcd"), {"unknown dtype 'f32'"});
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":{"y":1,"y":2}}})", "abcd"), {"duplicate key 'y'"});
  expect_refused(file_of(R"({"a":)" + std::string(200, '[') + std::string(200, ']') + "}"), {"nested deeper"});
  expect_refused(file_of(R"({"a\u001b[2J\u0000":{}})"), {R"('a\x1b[2J\x00' has no dtype)"});  // no control characters on a terminal
  expect_refused(file_of("{\"" + std::string(1'000'000, 'n') + "\":1}"), {"nnn…' is not described"});
  expect_refused(file_of(std::string(5'000'000, '{')), {"malformed JSON"});
  expect_refused(file_of(R"({"a":)" + std::string(5'000'000, '[')), {"nested deeper"});
}

TEST(Safetensors, WrittenFilesAreWhatTheReaderExpects) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "two.safetensors";
  const std::vector<float> a{1.0f, -2.5f, std::numeric_limits<float>::infinity()};
  const std::vector<BFloat16> b{to_bfloat16(3.0f), to_bfloat16(-0.5f)};
  SafetensorsWriter writer(
      path, {{"z first", StoredType::F32, {3, 1}}, {"a \"second\" ü", StoredType::BF16, {2}}, {"empty", StoredType::F32, {0, 4}}},
      {{"key", "value\n"}});
  const std::string first = writer.append(a.data(), 12);
  writer.append(b.data(), 4);
  writer.append(nullptr, 0);
  const auto result = writer.finish();

  const std::string bytes = read_text(path);
  EXPECT_EQ(result.bytes, bytes.size());
  StreamHash whole, part;
  whole.update(bytes.data(), bytes.size());
  part.update(a.data(), 12);
  EXPECT_EQ(result.checksum, whole.hex());
  EXPECT_EQ(first, part.hex());

  const SafetensorsFile file(path);
  EXPECT_EQ(file.header().data_begin % 8, 0u);
  EXPECT_EQ(file.header().metadata.at("key"), "value\n");
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "z first");
  EXPECT_EQ(file.tensors()[0].shape, (Shape{3, 1}));
  ASSERT_NE(file.find("a \"second\" ü"), nullptr);
  EXPECT_EQ(file.find("third"), nullptr);
  std::vector<float> read(3);
  file.read_floats(file.tensors()[0], 0, 3, read.data());
  EXPECT_EQ(read, a);
  file.read_floats(*file.find("a \"second\" ü"), 1, 1, read.data());
  EXPECT_EQ(read[0], -0.5f);
}

TEST(Safetensors, ReadsEveryFloatingPointTypeAtAnyAlignment) {
  const TemporaryDirectory directory;
  // The values after one byte, so that none is aligned.
  const auto values_of = [&](const std::string& type, const std::string& data, int count) {
    const std::string header = R"({"pad":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":")" + type + R"(","shape":[)" +
                               std::to_string(count) + R"(],"data_offsets":[1,)" + std::to_string(1 + data.size()) + "]}}";
    const fs::path path = directory.path() / "x.safetensors";
    write_text(path, file_of(header, "p" + data));
    const SafetensorsFile file(path);
    std::vector<float> values(static_cast<std::size_t>(count));
    file.read_floats(*file.find("x"), 0, count, values.data());
    return values;
  };
  const auto bytes_of = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]);
  };
  EXPECT_EQ(values_of("F64", bytes_of(std::vector<double>{0.1, -3.0}), 2), (std::vector<float>{0.1f, -3.0f}));
  // binary16: 1, -2, largest, smallest subnormal, smallest normal, infinity, -0.
  const auto halves = values_of("F16", bytes_of(std::vector<std::uint16_t>{0x3c00, 0xc000, 0x7bff, 0x0001, 0x0400, 0x7c00, 0x8000}), 7);
  EXPECT_EQ(halves, (std::vector<float>{1.0f, -2.0f, 65504.0f, 0x1p-24f, 0x1p-14f, std::numeric_limits<float>::infinity(), -0.0f}));
  EXPECT_TRUE(std::signbit(halves[6]));
  EXPECT_TRUE(std::isnan(values_of("F16", bytes_of(std::vector<std::uint16_t>{0x7e01}), 1)[0]));
  expect_error([&] { values_of("I32", "abcd", 1); }, ExitCode::bad_data, {"'x' holds I32", "x.safetensors"});
}

}  // namespace
}  // namespace baleen::checkpoint::testing
