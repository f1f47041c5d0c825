#include "ops/attention_merge.h"

#include <cmath>
#include <limits>

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_merge.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// Tokens [begin, end) of the part.
void MergeTokens(const AttentionMergeShape& shape, const Tensor& out, const Tensor& lse, const Tensor& part, const Tensor& part_lse,
                 std::int64_t begin, std::int64_t end) {
  const FloatTag d;
  ForStorage(part.dtype(), [&](auto zero) HWY_ATTR {
    for (std::int64_t token = begin; token < end; ++token)
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const std::int64_t b = token / shape.rows, r = token % shape.rows;
        float& sum = lse.as<float>()[(b * shape.heads + h) * shape.length + shape.first + r];
        const float added = part_lse.as<float>()[(b * shape.heads + h) * shape.rows + r];
        const float greater = sum > added ? sum : added, less = sum > added ? added : sum;
        // Neither has seen a key: out stays 0.
        if (greater == -std::numeric_limits<float>::infinity()) continue;
        const float together = greater + std::log1p(std::exp(less - greater));
        const FloatVec keep = hn::Set(d, std::exp(sum - together)), take = hn::Set(d, std::exp(added - together));
        float* to = out.as<float>() + (b * shape.length + shape.first + r) * shape.out_stride + h * shape.head_dim;
        const auto* from = part.as<decltype(zero)>() + (token * shape.heads + h) * shape.head_dim;
        ForVectors(static_cast<std::size_t>(shape.head_dim), [&](std::size_t i, auto width) HWY_ATTR {
          StoreVec(Fma(take, LoadVec(from + i, width), hn::Mul(keep, LoadVec(to + i, width))), to + i, width);
        });
        sum = together;
      }
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(MergeTokens);

void attention_merge(const AttentionMergeShape& shape, const Tensor& out, const Tensor& lse, const Tensor& part, const Tensor& part_lse) {
  require_fp32("merging attention", {&out, &lse, &part_lse});
  require_compute_dtype("merging attention", {&part});
  BALEEN_CHECK(shape.first >= 0 && shape.first + shape.rows <= shape.length, shape.first, shape.rows, shape.length);
  BALEEN_CHECK(shape.out_stride >= shape.heads * shape.head_dim, shape.out_stride);
  parallel_ranges(shape.batch * shape.rows, 1, worthwhile_rows(shape.heads * shape.head_dim), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(MergeTokens)(shape, out, lse, part, part_lse, begin, end);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
