#include "ops/vocabulary_cross_entropy.h"

#include "ops/cross_entropy.h"
#include "ops/gpu/kernel.cuh"
#include "ops/gpu/loss_sum.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 512;
constexpr int statistics_of_row = static_cast<int>(vocabulary_statistics);

// The columns from `valid` on are no logits.
template <class T, int W>
__device__ Pack<T, W> load_logits(const T* row, std::int64_t begin, std::int64_t valid) {
  Pack<T, W> values = load<T, W>(row + begin);
  for (int j = 0; j < W; ++j)
    if (begin + j >= valid) values.at[j] = rounded<T>(-INFINITY);
  return values;
}

// A block has one row of logits.
template <class T, int W>
__global__ void __launch_bounds__(threads) row_statistics(std::int64_t columns, std::int64_t valid, float* statistics, const T* logits,
                                                          const std::int32_t* targets, std::int64_t first) {
  const T* const row = logits + blockIdx.x * columns;
  float greatest = -INFINITY;
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    const Pack<T, W> values = load_logits<T, W>(row, i, valid);
    for (int j = 0; j < W; ++j) greatest = fmaxf(greatest, as_float(values.at[j]));
  }
  greatest = block_reduce<Greatest, threads>(greatest, -INFINITY);
  float sum = 0;
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    const Pack<T, W> values = load_logits<T, W>(row, i, valid);
    for (int j = 0; j < W; ++j) sum += expf(as_float(values.at[j]) - greatest);
  }
  sum = block_reduce<Sum, threads>(sum, 0.0f);
  if (threadIdx.x != 0) return;
  const std::int64_t own = static_cast<std::int64_t>(targets[blockIdx.x]) - first;
  float* const out = statistics + blockIdx.x * statistics_of_row;
  out[0] = greatest;
  out[1] = sum;
  out[2] = own >= 0 && own < valid ? as_float(row[own]) : 0.0f;
}

// A block has one row; every thread merges the ranks' statistics for itself. gradient_scale: null for the loss alone.
template <class T, int W>
__global__ void __launch_bounds__(threads)
    row_gradient(std::int64_t rows, std::int64_t ranks, std::int64_t columns, std::int64_t valid, float* losses, T* logits,
                 const float* statistics, const std::int32_t* targets, std::int64_t first, const float* gradient_scale) {
  const std::int64_t row = blockIdx.x;
  const auto of = [&](std::int64_t rank, int which) { return statistics[(rank * rows + row) * statistics_of_row + which]; };
  float greatest = of(0, 0);
  for (std::int64_t rank = 1; rank < ranks; ++rank) greatest = fmaxf(greatest, of(rank, 0));
  double sum = 0, logit = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    sum += of(rank, 1) * exp(static_cast<double>(of(rank, 0)) - greatest);
    logit += of(rank, 2);
  }
  const bool ignored = targets[row] == ignore_index;
  const std::int64_t own = static_cast<std::int64_t>(targets[row]) - first;
  if (threadIdx.x == 0) losses[row] = ignored ? 0.0f : static_cast<float>(log(sum) + (static_cast<double>(greatest) - logit));
  if (gradient_scale == nullptr) return;
  const float scale = ignored ? 0.0f : *gradient_scale, share = scale / static_cast<float>(sum);
  T* const values_of_row = logits + row * columns;
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    Pack<T, W> values = load_logits<T, W>(values_of_row, i, valid);
    for (int j = 0; j < W; ++j) {
      const float probability = share * expf(as_float(values.at[j]) - greatest);
      values.at[j] = rounded<T>(i + j == own && own < valid ? probability - scale : probability);
    }
    store(values_of_row + i, values);
  }
}

}  // namespace

void vocabulary_cross_entropy_statistics(Stream& stream, const Tensor& statistics, const Tensor& logits, const Tensor& targets,
                                         std::int64_t first, std::int64_t valid) {
  const std::int64_t rows = logits.size(0), columns = logits.size(1);
  BALEEN_CHECK(valid > 0 && valid <= columns, valid, columns);
  BALEEN_CHECK(statistics.elements() == rows * vocabulary_statistics && targets.elements() == rows, statistics.elements(), rows);
  if (rows == 0) return;
  for_element_type(logits.dtype(), "vocabulary cross-entropy", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(columns, {logits.data()}, [&](auto width) {
      row_statistics<T, decltype(width)::value><<<blocks_for(rows, 1), threads, 0, native_stream(stream)>>>(
          columns, valid, statistics.as<float>(), logits.as<T>(), targets.as<std::int32_t>(), first);
    });
  });
  check_launch("vocabulary cross-entropy");
}

void vocabulary_cross_entropy(Stream& stream, const Tensor& loss_sum, const Tensor& logits, const Tensor& statistics, const Tensor& targets,
                              std::int64_t first, std::int64_t valid, const Tensor& gradient_scale, void* workspace) {
  const std::int64_t rows = logits.size(0), columns = logits.size(1);
  if (rows == 0) return;
  const std::int64_t ranks = statistics.elements() / (rows * vocabulary_statistics);
  BALEEN_CHECK(statistics.elements() == ranks * rows * vocabulary_statistics && targets.elements() == rows, statistics.elements(), rows);
  auto* losses = static_cast<float*>(workspace);
  const gpuStream_t native = native_stream(stream);
  for_element_type(logits.dtype(), "vocabulary cross-entropy", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(columns, {logits.data()}, [&](auto width) {
      row_gradient<T, decltype(width)::value><<<blocks_for(rows, 1), threads, 0, native>>>(
          rows, ranks, columns, valid, losses, logits.as<T>(), statistics.as<float>(), targets.as<std::int32_t>(), first,
          gradient_scale.defined() ? gradient_scale.as<float>() : nullptr);
    });
  });
  check_launch("vocabulary cross-entropy");
  add_losses<<<1, loss_threads, 0, native>>>(rows, loss_sum.as<double>(), losses);
  check_launch("vocabulary cross-entropy");
}

}  // namespace baleen::ops::gpu
