#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is read in place");

namespace baleen::checkpoint {
namespace {

using nlohmann::json;

struct TypeFacts {
  StoredType type;
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<TypeFacts, 15> type_facts{{{StoredType::F64, "F64", 8},
                                                {StoredType::F32, "F32", 4},
                                                {StoredType::F16, "F16", 2},
                                                {StoredType::BF16, "BF16", 2},
                                                {StoredType::I64, "I64", 8},
                                                {StoredType::I32, "I32", 4},
                                                {StoredType::I16, "I16", 2},
                                                {StoredType::I8, "I8", 1},
                                                {StoredType::U64, "U64", 8},
                                                {StoredType::U32, "U32", 4},
                                                {StoredType::U16, "U16", 2},
                                                {StoredType::U8, "U8", 1},
                                                {StoredType::BOOL, "BOOL", 1},
                                                {StoredType::F8_E4M3, "F8_E4M3", 1},
                                                {StoredType::F8_E5M2, "F8_E5M2", 1}}};

// IEEE binary16 (1 sign, 5 exponent, 10 fraction bits) without a branch: as fp32 with the exponent 112 too small, which a product puts
// right, for subnormals too; infinity and NaN get the greatest exponent.
float half_to_float(std::uint16_t bits) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13, sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  return std::bit_cast<float>((magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : scaled) | sign);
}

template <class Stored, class Convert>
void convert_each(const std::byte* from, std::int64_t count, float* out, Convert convert) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, from + static_cast<std::size_t>(i) * sizeof value, sizeof value);  // the map gives no alignment
    out[i] = convert(value);
  }
}

// Reads one header; holds what every message needs.
class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> file, const std::string& where) : file_(file), where_(where) {}

  SafetensorsHeader parse() {
    const std::string_view text = header_text();
    const json document = parse_json(text, where_ + ", header");
    if (!text.starts_with('{')) fail("the JSON does not start with '{'");
    header_.data_begin = 8 + text.size();
    for (const auto& [name, value] : document.items()) {
      if (name == "__metadata__")
        read_metadata(value);
      else
        header_.tensors.push_back(read_tensor(name, value));
    }
    check_contiguous();
    return std::move(header_);
  }

 private:
  [[noreturn]] void fail(const std::string& problem, const std::string& remedy = "") const {
    throw Error(ExitCode::bad_data, problem, where_, remedy.empty() ? "get the file again from where it came" : remedy);
  }

  std::string_view header_text() const {
    const std::string_view text(reinterpret_cast<const char*>(file_.data()), file_.size());
    if (text.starts_with("version https://git-lfs"))
      fail("this is a Git LFS pointer, not the safetensors file itself", "run 'git lfs pull' where it was cloned, or download the file");
    if (text.size() < 8) fail(fmt::format("truncated: {} bytes, and a safetensors file has at least 8", text.size()));
    std::uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof length);
    if (length > safetensors_header_limit)
      fail(
          fmt::format("not a safetensors file: its header would have {} bytes and the format allows {}", length, safetensors_header_limit));
    if (length > text.size() - 8)
      fail(fmt::format("truncated: the header has {} bytes and the file ends after {} of them", length, text.size() - 8));
    return text.substr(8, length);
  }

  void read_metadata(const json& value) {
    if (!value.is_object()) fail("__metadata__ is not an object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) fail(fmt::format("__metadata__ '{}' is not a string", printable(key)));
      header_.metadata[key] = text.get<std::string>();
    }
  }

  StoredTensor read_tensor(const std::string& key, const json& value) const {
    const std::string name = printable(key);
    if (!value.is_object()) fail(fmt::format("tensor '{}' is not described by an object", name));
    const auto field = [&](const char* what, json::value_t type) -> const json& {
      const auto found = value.find(what);
      if (found == value.end()) fail(fmt::format("tensor '{}' has no {}", name, what));
      if (found->type() != type) fail(fmt::format("tensor '{}': {} has the wrong type ({})", name, what, found->type_name()));
      return *found;
    };
    StoredTensor tensor;
    tensor.name = key;
    const auto type_name = field("dtype", json::value_t::string).get<std::string>();
    const auto type = stored_type_from_name(type_name);
    if (!type) fail(fmt::format("tensor '{}': unknown dtype '{}'", name, printable(type_name)));
    tensor.type = *type;

    std::uint64_t bytes = stored_type_bytes(tensor.type);
    for (const json& extent : field("shape", json::value_t::array)) {
      if (!extent.is_number_unsigned())
        fail(fmt::format("tensor '{}': dimension {} is not a non-negative integer", name, printable(dump_json(extent))));
      const auto size = extent.get<std::uint64_t>();
      if (size > INT64_MAX || __builtin_mul_overflow(bytes, size, &bytes))
        fail(fmt::format("tensor '{}': its shape overflows 64 bits", name));
      tensor.shape.push_back(static_cast<std::int64_t>(size));
    }
    const json& offsets = field("data_offsets", json::value_t::array);
    if (offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
      fail(fmt::format("tensor '{}': data_offsets {} are not two non-negative integers", name, printable(dump_json(offsets))));
    tensor.begin = offsets[0].get<std::size_t>();
    tensor.end = offsets[1].get<std::size_t>();
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != bytes)
      fail(fmt::format("tensor '{}': {} of shape {} takes {} bytes and its data_offsets are [{}, {}]", name, type_name,
                       format_shape(tensor.shape), bytes, tensor.begin, tensor.end));
    return tensor;
  }

  // The tensors fill the data from its first byte to the end of the file, without hole or overlap.
  void check_contiguous() {
    std::sort(header_.tensors.begin(), header_.tensors.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    const std::size_t present = file_.size() - header_.data_begin;
    std::size_t expected = 0;
    for (const StoredTensor& tensor : header_.tensors) {
      if (tensor.begin != expected)
        fail(fmt::format("{} before tensor '{}': its data begin at {} and the data before end at {}",
                         tensor.begin < expected ? "overlap" : "hole", tensor.name, tensor.begin, expected));
      expected = tensor.end;
    }
    if (expected > present) fail(fmt::format("truncated: the header describes {} bytes of data and the file has {}", expected, present));
    if (expected < present) fail(fmt::format("{} trailing bytes after the data", present - expected));
  }

  std::span<const std::byte> file_;
  const std::string& where_;
  SafetensorsHeader header_;
};

}  // namespace

std::string_view stored_type_name(StoredType type) {
  return type_facts[static_cast<std::size_t>(type)].name;
}

std::size_t stored_type_bytes(StoredType type) {
  return type_facts[static_cast<std::size_t>(type)].bytes;
}

std::optional<StoredType> stored_type_from_name(std::string_view name) {
  for (const TypeFacts& facts : type_facts)
    if (facts.name == name) return facts.type;
  return std::nullopt;
}

StoredType stored_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return StoredType::F32;
    case DType::bf16: return StoredType::BF16;
    case DType::f64: return StoredType::F64;
    case DType::i32: return StoredType::I32;
    case DType::u8: return StoredType::U8;
    case DType::u64: return StoredType::U64;
  }
  return StoredType::U8;
}

std::string format_shape(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& where) {
  return HeaderParser(file, where).parse();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const std::byte> SafetensorsFile::data(const StoredTensor& tensor) const {
  return file_.bytes().subspan(header_.data_begin + tensor.begin, tensor.end - tensor.begin);
}

bool is_floating(StoredType type) {
  return type == StoredType::F64 || type == StoredType::F32 || type == StoredType::F16 || type == StoredType::BF16;
}

void floats_from(StoredType type, const std::byte* from, std::int64_t count, float* out) {
  switch (type) {
    case StoredType::F32:
      if (count > 0) std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case StoredType::BF16: return convert_each<BFloat16>(from, count, out, [](BFloat16 value) { return to_float(value); });
    case StoredType::F16: return convert_each<std::uint16_t>(from, count, out, half_to_float);
    case StoredType::F64: return convert_each<double>(from, count, out, [](double value) { return static_cast<float>(value); });
    default: BALEEN_CHECK(false, "no floating-point type", stored_type_name(type));
  }
}

void SafetensorsFile::read_floats(const StoredTensor& tensor, std::int64_t first, std::int64_t count, float* out) const {
  BALEEN_CHECK(first >= 0 && count >= 0 && first + count <= tensor.elements(), first, count, tensor.elements());
  if (count == 0) return;
  if (!is_floating(tensor.type))
    throw Error(ExitCode::bad_data,
                fmt::format("tensor '{}' holds {} and floating-point values are needed", tensor.name, stored_type_name(tensor.type)),
                path().string());
  floats_from(tensor.type, data(tensor).data() + static_cast<std::size_t>(first) * stored_type_bytes(tensor.type), count, out);
}

}  // namespace baleen::checkpoint
