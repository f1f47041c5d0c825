// Reads the golden values that tests/golden/make_ops.py writes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "ops/support.h"

namespace baleen::ops::testing {

class Golden {
 public:
  explicit Golden(std::string op)
      : op_(std::move(op)), index_(nlohmann::json::parse(read_file(folder() + "ops.json"))), data_(read_file(folder() + "ops.bin")) {}

  Array array(const std::string& name) const {
    const std::vector<float> values = read<float>(name, "f32");
    Array result(static_cast<std::int64_t>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) result[static_cast<std::int64_t>(i)] = values[i];
    return result;
  }
  std::vector<double> want(const std::string& name) const { return read<double>(name, "f64"); }
  std::vector<std::int32_t> integers(const std::string& name) const { return read<std::int32_t>(name, "i32"); }

 private:
  static std::string folder() { return BALEEN_SOURCE_DIR "/tests/golden/"; }
  template <class Element>
  std::vector<Element> read(const std::string& name, const std::string& dtype) const {
    const auto& entry = index_.at(op_ + "." + name);
    BALEEN_CHECK(entry.at("dtype") == dtype, op_, name);
    std::size_t count = 1;
    for (const std::size_t extent : entry.at("shape")) count *= extent;
    const std::size_t offset = entry.at("offset");
    BALEEN_CHECK(offset + count * sizeof(Element) <= data_.size(), op_, name, offset, count);
    std::vector<Element> values(count);
    std::memcpy(values.data(), data_.data() + offset, count * sizeof(Element));
    return values;
  }

  std::string op_;
  nlohmann::json index_;
  std::string data_;
};

}  // namespace baleen::ops::testing
