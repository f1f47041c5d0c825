// Joins attention over two disjoint sets of keys: what each query got from either is weighted by the exponentials of the log-sum-exps
// (H. Liu, M. Zaharia and P. Abbeel, "Ring attention with blockwise transformers", arXiv 2310.01889).
#pragma once

#include "ops/context.h"

namespace baleen::ops {

// Queries [first, first + rows) of each sequence of `length`.
struct AttentionMergeShape {
  std::int64_t batch = 0, length = 0, first = 0, rows = 0, heads = 0, head_dim = 0;  // B, T, …, H, D
  std::int64_t out_stride = 0;                                                       // elements between consecutive tokens of out
};

namespace cpu {
void attention_merge(const AttentionMergeShape& shape, const Tensor& out, const Tensor& lse, const Tensor& part, const Tensor& part_lse);
}  // namespace cpu
namespace gpu {
void attention_merge(Stream& stream, const AttentionMergeShape& shape, const Tensor& out, const Tensor& lse, const Tensor& part,
                     const Tensor& part_lse);
}  // namespace gpu

// In place: out [B·T, H, D] fp32 with the stride of `shape`, lse [B, H, T] fp32. part [B·rows, H, D] fp32 or bf16, contiguous, part_lse
// [B, H, rows] fp32: the outcome over further keys. A log-sum-exp of -inf says that no key was seen.
//   lse' = log(e^lse + e^part_lse);  out' = e^(lse - lse') · out + e^(part_lse - lse') · part
inline void attention_merge(Context& context, const AttentionMergeShape& shape, const Tensor& out, const Tensor& lse, const Tensor& part,
                            const Tensor& part_lse) {
  dispatch(
      context, [&] { cpu::attention_merge(shape, out, lse, part, part_lse); },
      [&] { gpu::attention_merge(context.stream, shape, out, lse, part, part_lse); });
}

}  // namespace baleen::ops
