#include "ops/cross_entropy.h"

#include <omp.h>

#include <array>
#include <cmath>
#include <type_traits>

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/softmax_row-inl.h"

namespace baleen::ops::cpu {
#ifndef BALEEN_OPS_CPU_CROSS_ENTROPY_ONCE
#define BALEEN_OPS_CPU_CROSS_ENTROPY_ONCE

// A thread's part of the workspace: the greatest of each block of a row, and the exponentials of one row of bf16 logits. Those of fp32 take
// the logits' place.
struct RowScratch {
  float *references, *exponentials;
};

#endif
}  // namespace baleen::ops::cpu

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// losses [rows]; logits [rows, V] become gradients when gradient_scale is there. The exponentials are computed once: fp32 logits become
// them, those of bf16 logits wait in the second-level cache, where both rows have room.
template <class T>
HWY_INLINE void CrossEntropyOf(std::int64_t rows, std::size_t columns, float* losses, T* logits, const std::int32_t* targets,
                               const float* gradient_scale, const RowScratch& scratch) {
  const FloatTag d;
  for (std::int64_t row = 0; row < rows; ++row, logits += columns) {
    const std::int32_t target = targets[row];
    if (target == ignore_index) {
      losses[row] = 0;
      if (gradient_scale != nullptr)
        ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR { StoreVec(hn::Zero(d), logits + i, width); });
      continue;
    }
    const float logit = ToFloat(logits[target]);
    float* exponentials = scratch.exponentials;
    if constexpr (std::is_same_v<T, float>) exponentials = logits;
    const RowSoftmax softmax =
        gradient_scale == nullptr ? ReduceRow<false>(logits, columns) : ReduceRow<true>(logits, columns, exponentials, scratch.references);
    losses[row] = static_cast<float>(std::log(softmax.sum) + (static_cast<double>(softmax.greatest) - logit));
    if (gradient_scale == nullptr) continue;
    SoftmaxOfRow(softmax, *gradient_scale, exponentials, scratch.references, columns, logits);
    const double probability = std::exp(static_cast<double>(logit) - softmax.greatest) / softmax.sum;
    StoreVec(hn::Set(d, static_cast<float>(*gradient_scale * (probability - 1))), logits + target, Part{1});
  }
}

// Rows [begin, end) of logits; losses stands at the first.
void CrossEntropyRows(const Tensor& logits, const Tensor& targets, const float* gradient_scale, std::int64_t begin, std::int64_t end,
                      float* losses, const RowScratch& scratch) {
  const std::int64_t columns = logits.size(1);
  ForStorage(logits.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    CrossEntropyOf(end - begin, static_cast<std::size_t>(columns), losses, logits.as<T>() + begin * columns,
                   targets.as<std::int32_t>() + begin, gradient_scale, scratch);
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(CrossEntropyRows);

namespace {

std::int64_t blocks_of(std::int64_t columns) {
  constexpr auto block = static_cast<std::int64_t>(HWY_NAMESPACE::softmax_block);
  return (columns + block - 1) / block;
}
std::size_t scratch_floats(const Tensor& logits) {
  return static_cast<std::size_t>(blocks_of(logits.size(1)) + (logits.dtype() == DType::bf16 ? logits.size(1) : 0));
}

// gradient_scale and workspace: null for the loss alone.
void cross_entropy(const Tensor& loss_sum, const Tensor& logits, const Tensor& targets, const float* gradient_scale, void* workspace) {
  require_compute_dtype("cross-entropy", {&logits});
  BALEEN_CHECK(logits.dims() == 2 && targets.elements() == logits.size(0) && loss_sum.elements() == 1, logits.dims(), targets.elements());
  const std::int64_t rows = logits.size(0), columns = logits.size(1);
  check_indices(targets, columns, ignore_index);
  // Token losses wait in a small array, so that their sum has the order of the rows, whoever computed them.
  constexpr std::int64_t chunk = 1024;
  std::array<float, chunk> losses;
  double total = 0;
  for (std::int64_t first = 0; first < rows; first += chunk) {
    const std::int64_t count = std::min(chunk, rows - first);
    parallel_ranges(count, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
      RowScratch scratch{};
      if (workspace != nullptr) {
        scratch.references = static_cast<float*>(workspace) + static_cast<std::size_t>(omp_get_thread_num()) * scratch_floats(logits);
        scratch.exponentials = scratch.references + blocks_of(columns);
      }
      HWY_DYNAMIC_DISPATCH(CrossEntropyRows)(logits, targets, gradient_scale, first + begin, first + end, losses.data() + begin, scratch);
    });
    for (std::int64_t i = 0; i < count; ++i) total += losses[static_cast<std::size_t>(i)];
  }
  loss_sum.as<double>()[0] += total;
}

}  // namespace

void cross_entropy_forward(const Tensor& loss_sum, const Tensor& logits, const Tensor& targets) {
  cross_entropy(loss_sum, logits, targets, nullptr, nullptr);
}

std::size_t cross_entropy_workspace(const Tensor& logits) {
  return static_cast<std::size_t>(omp_get_max_threads()) * scratch_floats(logits) * sizeof(float);
}

void cross_entropy_forward_backward(const Tensor& loss_sum, const Tensor& logits, const Tensor& targets, const Tensor& gradient_scale,
                                    void* workspace) {
  require_fp32("cross-entropy", {&gradient_scale});
  BALEEN_CHECK(gradient_scale.elements() == 1, gradient_scale.elements());
  cross_entropy(loss_sum, logits, targets, gradient_scale.as<float>(), workspace);
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
