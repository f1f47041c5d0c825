// Runs one operation on both devices: the CPU's result is the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "device/gpu.h"
#include "ops/context.h"
#include "ops/support.h"

namespace baleen::testing {

using Floats = std::vector<float>;

// A device with what a test needs of it. Memory that it hands out is poisoned, so that whatever nobody wrote is a NaN in the result.
class Side {
 public:
  explicit Side(std::unique_ptr<Device> device) : device_(std::move(device)), stream_(device_->create_stream()) {}

  DType precision = DType::f32;  // of put_rounded and poisoned_rounded

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

  template <class T>
  Tensor put(const std::vector<T>& values, std::initializer_list<std::int64_t> shape) {
    const Tensor tensor = allocate(dtype_of<T>::value, shape);
    BALEEN_CHECK(tensor.elements() == static_cast<std::int64_t>(values.size()), tensor.elements(), values.size());
    write(tensor.data(), values.data(), tensor.bytes());
    return tensor;
  }
  // fp32 values in the precision that the side computes in.
  Tensor put_rounded(const Floats& values, std::initializer_list<std::int64_t> shape) {
    if (precision == DType::f32) return put(values, shape);
    std::vector<BFloat16> halves;
    for (const float value : values) halves.push_back(to_bfloat16(value));
    return put(halves, shape);
  }
  Tensor poisoned(std::initializer_list<std::int64_t> shape) { return allocate(DType::f32, shape); }
  Tensor poisoned_rounded(std::initializer_list<std::int64_t> shape) { return allocate(precision, shape); }
  void write(void* to, const void* from, std::size_t bytes) {
    stream_->copy(to, from, bytes);
    stream_->synchronize();
  }
  template <class T = float>
  std::vector<T> get(const Tensor& tensor) {
    std::vector<T> values(static_cast<std::size_t>(tensor.elements()));
    stream_->copy(values.data(), tensor.as<T>(), tensor.bytes());
    stream_->synchronize();
    return values;
  }
  // Of a tensor of fp32 or bf16.
  Floats get_floats(const Tensor& tensor) {
    if (tensor.dtype() == DType::f32) return get(tensor);
    Floats values;
    for (const BFloat16 half : get<BFloat16>(tensor)) values.push_back(to_float(half));
    return values;
  }
  Buffer poisoned_buffer(const std::string& name, std::size_t bytes) {
    Buffer buffer = device_->allocate(name, std::max<std::size_t>(bytes, 1));
    const std::vector<std::byte> poison(buffer.bytes(), std::byte{0xff});
    write(buffer.data(), poison.data(), poison.size());
    return buffer;
  }

  // Measures the scratch that `body` needs, then runs it with exactly that.
  template <class Body>
  void run(const Body& body) {
    Arena measured;
    const auto measuring = device_->create_measuring_stream();
    ops::Context dry{*measuring, measured};
    body(dry);
    const Buffer memory = poisoned_buffer("scratch", measured.peak());
    Arena scratch;
    scratch.bind(memory.data(), memory.bytes());
    ops::Context context{*stream_, scratch};
    body(context);
    stream_->synchronize();
  }

 private:
  Tensor allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
    const std::size_t bytes = Tensor(nullptr, dtype, shape).bytes();
    buffers_.push_back(poisoned_buffer("test", bytes));
    return Tensor(buffers_.back().data(), dtype, shape);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
};

class OnBothDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const GpuList list = list_gpus(); list.gpus.empty()) GTEST_SKIP() << "no GPU: " << list.why_none;
    cpu = std::make_unique<Side>(create_cpu_device());
    gpu = std::make_unique<Side>(create_gpu_device(0));
  }

  // Fresh values each time the test runs; a failure prints the seed.
  Floats random(std::int64_t count, float scale = 1.0f) {
    Floats values(static_cast<std::size_t>(count));
    const Philox philox(derive_key(seed, "tests/gpu" + std::to_string(arrays++)));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * normal_at(philox, i);
    return values;
  }
  std::vector<std::int32_t> random_indices(std::int64_t count, std::int64_t limit) {
    std::vector<std::int32_t> values;
    std::mt19937 generator(static_cast<unsigned>(seed + arrays++));
    for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<std::int32_t>(generator() % static_cast<unsigned>(limit)));
    return values;
  }

  // `op` runs on a side and returns its results, each compared within the bounds of docs/numerics.md.
  template <class Op>
  void expect_equal(const Op& op, const std::string& what) {
    const std::vector<Floats> want = op(*cpu), got = op(*gpu);
    ASSERT_EQ(want.size(), got.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_LE(ops::testing::relative_error({got[i].begin(), got[i].end()}, {want[i].begin(), want[i].end()}), ops::testing::fp32_bound)
          << what << ", result " << i << ", seed " << seed;
  }

  // Values that bf16 holds exactly: both sides then start from the same.
  Floats random_rounded(std::int64_t count, float scale = 1.0f) {
    Floats values = random(count, scale);
    for (float& value : values) value = to_float(to_bfloat16(value));
    return values;
  }

  // A result in bf16 was rounded once, unless `roundings` says otherwise; one in fp32 is exact up to fp32's errors.
  struct Result {
    Floats values;
    bool rounded = true;
    double roundings = 1;
  };
  // `op` runs in fp32 on the CPU and in bf16 on the GPU. docs/numerics.md: at most 1.5 times the error of rounding the exact result,
  // which of few numbers scatters by chance, as a mean of n does.
  template <class Op>
  void expect_rounded_equal(const Op& op, const std::string& what) {
    gpu->precision = DType::bf16;
    const std::vector<Result> want = op(*cpu), got = op(*gpu);
    ASSERT_EQ(want.size(), got.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      const std::vector<double> exact(want[i].values.begin(), want[i].values.end());
      std::vector<double> nearest;
      for (const float value : want[i].values) nearest.push_back(to_float(to_bfloat16(value)));
      const double scatter = 1 + 2 / std::sqrt(std::max(1.0, static_cast<double>(exact.size())));
      const double allowed = want[i].rounded ? 1.5 * scatter * want[i].roundings * ops::testing::relative_error(nearest, exact) + 1e-6
                                             : ops::testing::fp32_bound;
      EXPECT_LE(ops::testing::relative_error({got[i].values.begin(), got[i].values.end()}, exact), std::min(allowed, 1e-2))
          << what << ", result " << i << ", seed " << seed;
    }
  }

  std::uint64_t seed = std::random_device{}();
  int arrays = 0;
  std::unique_ptr<Side> cpu, gpu;
};

}  // namespace baleen::testing
