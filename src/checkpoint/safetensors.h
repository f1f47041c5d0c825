// The safetensors format (https://github.com/huggingface/safetensors): a u64 header length, a JSON header that names each tensor with its
// dtype, shape and byte range, then the data. docs/formats.md says what is accepted and what is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace baleen::checkpoint {

// The element types a file can hold; more than the trainer computes with.
enum class StoredType : std::uint8_t { F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL, F8_E4M3, F8_E5M2 };

std::string_view stored_type_name(StoredType type);
std::size_t stored_type_bytes(StoredType type);
std::optional<StoredType> stored_type_from_name(std::string_view name);
StoredType stored_type_of(DType dtype);

// "[2, 3]", as messages and reports print a shape.
std::string format_shape(std::span<const std::int64_t> shape);

// One tensor of a file. The name is opaque: it is never used as a path.
struct StoredTensor {
  std::string name;
  StoredType type = StoredType::F32;
  std::vector<std::int64_t> shape;
  std::size_t begin = 0, end = 0;  // bytes from the start of the data

  std::int64_t elements() const { return static_cast<std::int64_t>((end - begin) / stored_type_bytes(type)); }
};

// A header's limit, as the format's own implementation has it.
inline constexpr std::size_t safetensors_header_limit = 100'000'000;

// What a header says, checked against itself and the length of the file. Tensors are in the order of their data.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::size_t data_begin = 0;  // bytes from the start of the file
};

// Parses and checks a whole file's bytes. Throws Error(bad_data) naming `where` and what is wrong.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& where);

// Whether floats_from takes the type: F64 (rounded), F32, F16, BF16.
bool is_floating(StoredType type);
// `count` elements of such a type, aligned to nothing, as fp32.
void floats_from(StoredType type, const std::byte* from, std::int64_t count, float* out);

// A memory-mapped file; opening it reads the header only.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  const SafetensorsHeader& header() const { return header_; }
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  // nullptr when there is none of this name.
  const StoredTensor* find(const std::string& name) const;
  // The tensor's bytes in the map; not aligned to anything.
  std::span<const std::byte> data(const StoredTensor& tensor) const;
  // Elements [first, first + count) as fp32, from F64 (rounded), F32, F16 or BF16. Throws Error(bad_data) for another type.
  void read_floats(const StoredTensor& tensor, std::int64_t first, std::int64_t count, float* out) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace baleen::checkpoint
