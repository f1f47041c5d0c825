// What the tests of the operations share: random inputs, poisoned outputs, float64 comparisons, numeric gradients.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "ops/cross_entropy.h"
#include "ops/threads.h"
#include "tensor/tensor.h"

namespace baleen::ops::testing {

// Own OpenMP loops give false races under ThreadSanitizer: one thread there.
#if defined(__SANITIZE_THREAD__)
inline constexpr int most_threads = 1;
#else
inline constexpr int most_threads = 2;
#endif

class ThreadsScope {
 public:
  explicit ThreadsScope(int count) : before_(threads()) { set_threads(std::min(count, most_threads)); }
  ~ThreadsScope() { set_threads(before_); }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  int before_;
};

inline constexpr float poison = std::numeric_limits<float>::quiet_NaN();

// Memory of exactly its elements, so that AddressSanitizer sees a step outside.
class Array {
 public:
  Array() = default;
  explicit Array(std::int64_t count, float value = poison) : values_(static_cast<std::size_t>(count), value) {}
  static Array normal(std::uint64_t key, std::int64_t count, float scale = 1.0f) {
    Array array(count);
    const Philox philox(derive_key(key, "tests/ops"));
    for (std::int64_t i = 0; i < count; ++i) array[i] = scale * normal_at(philox, static_cast<std::uint64_t>(i));
    return array;
  }

  Tensor tensor(std::initializer_list<std::int64_t> shape) {
    const Tensor view(values_.data(), DType::f32, shape);
    BALEEN_CHECK(view.elements() == size(), view.elements(), size());
    return view;
  }
  // From element `begin` to the end, 1-D: where q, k or v begin inside fused rows.
  Tensor from(std::int64_t begin) { return Tensor(values_.data() + begin, DType::f32, {size() - begin}); }
  Tensor flat() { return from(0); }
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }
  float& operator[](std::int64_t i) { return values_[static_cast<std::size_t>(i)]; }
  float operator[](std::int64_t i) const { return values_[static_cast<std::size_t>(i)]; }
  std::vector<double> doubles() const { return {values_.begin(), values_.end()}; }
  bool same_bits(const Array& other) const {
    return size() == other.size() &&
           (size() == 0 || std::memcmp(values_.data(), other.values_.data(), values_.size() * sizeof(float)) == 0);
  }

 private:
  std::vector<float> values_;
};

// The same in bf16.
class HalfArray {
 public:
  explicit HalfArray(std::int64_t count) : values_(static_cast<std::size_t>(count), to_bfloat16(poison)) {}
  // Each value rounded to nearest.
  explicit HalfArray(const Array& from) : HalfArray(from.size()) {
    for (std::int64_t i = 0; i < size(); ++i) (*this)[i] = to_bfloat16(from[i]);
  }

  Tensor tensor(std::initializer_list<std::int64_t> shape) {
    const Tensor view(values_.data(), DType::bf16, shape);
    BALEEN_CHECK(view.elements() == size(), view.elements(), size());
    return view;
  }
  Tensor from(std::int64_t begin) { return Tensor(values_.data() + begin, DType::bf16, {size() - begin}); }
  Tensor flat() { return from(0); }
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }
  BFloat16& operator[](std::int64_t i) { return values_[static_cast<std::size_t>(i)]; }
  BFloat16 operator[](std::int64_t i) const { return values_[static_cast<std::size_t>(i)]; }
  Array floats() const {
    Array array(size());
    for (std::int64_t i = 0; i < size(); ++i) array[i] = to_float((*this)[i]);
    return array;
  }
  bool same_bits(const HalfArray& other) const {
    return size() == other.size() &&
           (size() == 0 || std::memcmp(values_.data(), other.values_.data(), values_.size() * sizeof(BFloat16)) == 0);
  }

 private:
  std::vector<BFloat16> values_;
};

// Exactly `bytes`, aligned as an arena's memory is, poisoned.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : data_(::operator new(bytes, std::align_val_t{Arena::alignment})) {
    std::memset(data_, 0xff, bytes);
  }
  ~Workspace() { ::operator delete(data_, std::align_val_t{Arena::alignment}); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
};

// The operation with a workspace of its own.
inline void cross_entropy_with_gradient(const Tensor& loss_sum, const Tensor& logits, const Tensor& targets, const Tensor& gradient_scale) {
  const Workspace space(cpu::cross_entropy_workspace(logits));
  cpu::cross_entropy_forward_backward(loss_sum, logits, targets, gradient_scale, space.data());
}

// ‖got - want‖ / ‖want‖; infinite when anything is not a number. Two empty or zero arrays are equal.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  if (norm == 0) return std::sqrt(difference);
  return std::sqrt(difference / norm);
}
inline double relative_error(const Array& got, const std::vector<double>& want) {
  return relative_error(got.doubles(), want);
}

// docs/numerics.md.
inline constexpr double fp32_bound = 1e-5;

// ∂f/∂x by central differences in float64. f must be smooth at the scale of the step.
template <class Function>
std::vector<double> numeric_gradient(std::vector<double> x, const Function& f, double step = 1e-5) {
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double value = x[i];
    x[i] = value + step;
    const double above = f(x);
    x[i] = value - step;
    gradient[i] = (above - f(x)) / (2 * step);
    x[i] = value;
  }
  return gradient;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace baleen::ops::testing
