// Reads the golden values of tests/golden, and measures differences the way docs/numerics.md bounds them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "support/paths.h"
#include "tensor/tensor.h"

namespace baleen::testing {

class Golden {
 public:
  // tests/golden/NAME.safetensors.
  explicit Golden(const std::string& name) : file_(golden_file(name + ".safetensors")) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const {
    const checkpoint::StoredTensor& tensor = at(name);
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    file_.read_floats(tensor, 0, tensor.elements(), values.data());
    return values;
  }
  template <class T>
  std::vector<T> raw(const std::string& name) const {
    const auto bytes = file_.data(at(name));
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<double> doubles(const std::string& name) const { return raw<double>(name); }
  std::vector<std::int32_t> ints(const std::string& name) const { return raw<std::int32_t>(name); }
  const std::vector<std::int64_t>& shape(const std::string& name) const { return at(name).shape; }

 private:
  const checkpoint::StoredTensor& at(const std::string& name) const {
    const checkpoint::StoredTensor* tensor = file_.find(name);
    BALEEN_CHECK(tensor != nullptr, "no golden value", name);
    return *tensor;
  }
  checkpoint::SafetensorsFile file_;
};

inline double norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// ‖a - b‖. NaN in either stays NaN.
inline double distance(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return std::sqrt(sum);
}

inline std::span<const float> elements(const Tensor& tensor) {
  return {tensor.as<float>(), static_cast<std::size_t>(tensor.elements())};
}

// ‖value - expected‖ ≤ bound · ‖expected‖ + floor. Written so that a NaN fails.
inline void expect_near(std::span<const float> value, std::span<const float> expected, const std::string& what, double bound = 1e-5,
                        double floor = 0) {
  const double error = distance(value, expected), allowed = bound * norm(expected) + floor;
  EXPECT_TRUE(error <= allowed) << what << ": error " << error << ", allowed " << allowed << ", norm " << norm(expected);
}

}  // namespace baleen::testing
