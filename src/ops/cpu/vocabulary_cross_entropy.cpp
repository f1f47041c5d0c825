#include "ops/vocabulary_cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#include "ops/cross_entropy.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/vocabulary_cross_entropy.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/softmax_row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

void StatisticsRows(const Tensor& statistics, const Tensor& logits, const std::int32_t* targets, std::int64_t first, std::int64_t begin,
                    std::int64_t end) {
  const std::int64_t columns = logits.size(1);
  ForStorage(logits.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    for (std::int64_t row = begin; row < end; ++row) {
      const T* values = logits.as<T>() + row * columns;
      float* out = statistics.as<float>() + row * vocabulary_statistics;
      const RowSoftmax softmax = ReduceRow<false>(values, static_cast<std::size_t>(columns));
      const std::int64_t own = static_cast<std::int64_t>(targets[row]) - first;
      out[0] = softmax.greatest;
      out[1] = static_cast<float>(softmax.sum);
      out[2] = own >= 0 && own < columns ? ToFloat(values[own]) : 0.0f;
    }
  });
}

// d_logits of rows [begin, end), in their place: scale · exp(logit - greatest) / sum - the target's scale. `whole` [rows, 2]: the greatest
// and the sum over all ranks.
void GradientRows(const Tensor& logits, const float* whole, const std::int32_t* targets, std::int64_t first, float gradient_scale,
                  std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = logits.size(1);
  ForStorage(logits.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const FloatTag d;
    for (std::int64_t row = begin; row < end; ++row) {
      T* values = logits.as<T>() + row * columns;
      const auto width_of_row = static_cast<std::size_t>(columns);
      if (targets[row] == ignore_index) {
        ForVectors(width_of_row, [&](std::size_t i, auto width) HWY_ATTR { StoreVec(hn::Zero(d), values + i, width); });
        continue;
      }
      const std::int64_t own = static_cast<std::int64_t>(targets[row]) - first;
      const bool mine = own >= 0 && own < columns;
      const FloatVec shift = hn::Set(d, whole[2 * row]), scale = hn::Set(d, gradient_scale / whole[2 * row + 1]);
      float of_target = 0;
      if (mine) of_target = hn::GetLane(hn::Mul(scale, Exp(hn::Sub(hn::Set(d, ToFloat(values[own])), shift)))) - gradient_scale;
      ForVectors(width_of_row, [&](std::size_t i, auto width) HWY_ATTR {
        StoreVecOfHalves(hn::Mul(scale, Exp(hn::Sub(LoadVec(values + i, width), shift))), values + i, width);
      });
      if (mine) StoreVec(hn::Set(d, of_target), values + own, Part{1});
    }
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(StatisticsRows);
HWY_EXPORT(GradientRows);

void vocabulary_cross_entropy_statistics(const Tensor& statistics, const Tensor& logits, const Tensor& targets, std::int64_t first) {
  require_fp32("vocabulary cross-entropy", {&statistics});
  require_compute_dtype("vocabulary cross-entropy", {&logits});
  const std::int64_t rows = logits.size(0);
  BALEEN_CHECK(statistics.elements() == rows * vocabulary_statistics && targets.elements() == rows, statistics.elements(), rows);
  parallel_ranges(rows, 1, worthwhile_rows(logits.size(1)), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(StatisticsRows)(statistics, logits, targets.as<std::int32_t>(), first, begin, end);
  });
}

void vocabulary_cross_entropy(const Tensor& loss_sum, const Tensor& logits, const Tensor& statistics, const Tensor& targets,
                              std::int64_t first, const Tensor& gradient_scale) {
  require_fp32("vocabulary cross-entropy", {&statistics});
  const std::int64_t rows = logits.size(0), ranks = rows == 0 ? 0 : statistics.elements() / (rows * vocabulary_statistics);
  BALEEN_CHECK(statistics.elements() == ranks * rows * vocabulary_statistics && targets.elements() == rows && loss_sum.elements() == 1,
               statistics.elements(), rows);
  const float* of_rank = statistics.as<float>();
  const std::int32_t* target = targets.as<std::int32_t>();
  constexpr std::int64_t chunk = 1024;
  std::array<float, 2 * chunk> whole;
  double total = 0;
  for (std::int64_t start = 0; start < rows; start += chunk) {
    const std::int64_t count = std::min(chunk, rows - start);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = [&](std::int64_t rank, std::int64_t which) {
        return of_rank[(rank * rows + start + i) * vocabulary_statistics + which];
      };
      float greatest = at(0, 0);
      for (std::int64_t rank = 1; rank < ranks; ++rank) greatest = std::max(greatest, at(rank, 0));
      double sum = 0, logit = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        sum += at(rank, 1) * std::exp(static_cast<double>(at(rank, 0)) - greatest);
        logit += at(rank, 2);  // 0 on all but one
      }
      whole[static_cast<std::size_t>(2 * i)] = greatest;
      whole[static_cast<std::size_t>(2 * i + 1)] = static_cast<float>(sum);
      if (target[start + i] != ignore_index) total += static_cast<float>(std::log(sum) + (static_cast<double>(greatest) - logit));
    }
    if (!gradient_scale.defined()) continue;
    const Tensor block = logits.rows(start, count);
    parallel_ranges(count, 1, worthwhile_rows(logits.size(1)), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(GradientRows)(block, whole.data(), target + start, first, gradient_scale.as<float>()[0], begin, end);
    });
  }
  loss_sum.as<double>()[0] += total;
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
