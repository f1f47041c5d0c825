#include "ops/golden.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "support/paths.h"

namespace baleen::ops::testing {

using baleen::testing::golden_file;

struct Golden::Index {
  nlohmann::json entries;
};

Golden::Golden(std::string op)
    : op_(std::move(op)),
      index_(new Index{parse_json(read_file(golden_file("ops.json")), "ops.json")}),
      data_(read_file(golden_file("ops.bin"))) {}
Golden::~Golden() = default;

template <class Element>
std::vector<Element> Golden::read(const std::string& name, const std::string& dtype) const {
  const auto& entry = index_->entries.at(op_ + "." + name);
  BALEEN_CHECK(entry.at("dtype") == dtype, op_, name);
  std::size_t count = 1;
  for (const std::size_t extent : entry.at("shape")) count *= extent;
  const std::size_t offset = entry.at("offset");
  BALEEN_CHECK(offset + count * sizeof(Element) <= data_.size(), op_, name, offset, count);
  std::vector<Element> values(count);
  std::memcpy(values.data(), data_.data() + offset, count * sizeof(Element));
  return values;
}

Array Golden::array(const std::string& name) const {
  const std::vector<float> values = read<float>(name, "f32");
  Array result(static_cast<std::int64_t>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) result[static_cast<std::int64_t>(i)] = values[i];
  return result;
}

std::vector<double> Golden::want(const std::string& name) const {
  return read<double>(name, "f64");
}
std::vector<std::int32_t> Golden::integers(const std::string& name) const {
  return read<std::int32_t>(name, "i32");
}

}  // namespace baleen::ops::testing
