// Causal softmax attention with grouped KV heads, tiled so that no Tq × Tk matrix exists (T. Dao, "FlashAttention-2", arXiv 2307.08691).
// Query and key lengths may differ and start at different positions: a KV cache, packed documents and context parallelism are the same op.
#pragma once

#include "ops/context.h"

namespace baleen::ops {

struct AttentionShape {
  std::int64_t batch = 0, query_length = 0, key_length = 0;  // B, Tq, Tk
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;        // H, Hkv (divides H), D
  // Elements between consecutive tokens of q, of k and v, and of out; sequences follow each other (token index = b · T + t).
  std::int64_t query_stride = 0, key_stride = 0, out_stride = 0;
  // Elements between the tokens of sequence b and b + 1 in k and v; 0 means key_length · key_stride (a KV cache has more room).
  std::int64_t key_batch_stride = 0;
  // Position of query 0 and key 0: query i sees key j when key_offset + j <= query_offset + i.
  std::int64_t query_offset = 0, key_offset = 0;
  float scale = 0;  // on q·k, usually 1/sqrt(D)
};

namespace cpu {
std::size_t attention_forward_workspace(const AttentionShape& shape, DType dtype, bool documents);
void attention_forward(const AttentionShape& shape, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& document_begin, void* workspace);
std::size_t attention_backward_workspace(const AttentionShape& shape, DType dtype, bool documents);
void attention_backward(const AttentionShape& shape, const Tensor& d_q, const Tensor& d_k, const Tensor& d_v, const Tensor& d_out,
                        const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                        const Tensor& document_begin, void* workspace);
}  // namespace cpu
namespace gpu {
std::size_t attention_forward_workspace(Stream& stream, const AttentionShape& shape, DType dtype, bool documents);
void attention_forward(Stream& stream, const AttentionShape& shape, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                       const Tensor& v, const Tensor& document_begin, void* workspace);
std::size_t attention_backward_workspace(Stream& stream, const AttentionShape& shape, DType dtype, bool documents);
void attention_backward(Stream& stream, const AttentionShape& shape, const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,
                        const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                        const Tensor& document_begin, void* workspace);
}  // namespace gpu

// out [B·Tq, H, D], lse [B, H, Tq] fp32 (log-sum-exp of the scaled scores; -inf and out = 0 for a query that sees no key),
// q [B·Tq, H, D], k, v [B·Tk, Hkv, D], all with the strides of `shape`. document_begin [B·Tq] int32, or undefined: the position of
// the first key a query may see.
inline void attention_forward(Context& context, const AttentionShape& shape, const Tensor& out, const Tensor& lse, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& document_begin) {
  const Arena::Scope scope(context.scratch);
  const Tensor space = workspace(
      context, "attention workspace", [&] { return cpu::attention_forward_workspace(shape, q.dtype(), document_begin.defined()); },
      [&] { return gpu::attention_forward_workspace(context.stream, shape, q.dtype(), document_begin.defined()); });
  dispatch(
      context, [&] { cpu::attention_forward(shape, out, lse, q, k, v, document_begin, space.data()); },
      [&] { gpu::attention_forward(context.stream, shape, out, lse, q, k, v, document_begin, space.data()); });
}

// d_q, d_k, d_v are written (not accumulated), with the strides of q, k, v. d_out has the stride of out. The key gradients are summed in
// an order that does not depend on the number of threads.
inline void attention_backward(Context& context, const AttentionShape& shape, const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,
                               const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                               const Tensor& document_begin) {
  const Arena::Scope scope(context.scratch);
  const Tensor space = workspace(
      context, "attention backward workspace",
      [&] { return cpu::attention_backward_workspace(shape, q.dtype(), document_begin.defined()); },
      [&] { return gpu::attention_backward_workspace(context.stream, shape, q.dtype(), document_begin.defined()); });
  dispatch(
      context, [&] { cpu::attention_backward(shape, d_q, d_k, d_v, d_out, q, k, v, out, lse, document_begin, space.data()); },
      [&] { gpu::attention_backward(context.stream, shape, d_q, d_k, d_v, d_out, q, k, v, out, lse, document_begin, space.data()); });
}

}  // namespace baleen::ops
