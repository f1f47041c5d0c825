// Token embedding: a row of the table for each id.
#pragma once

#include "ops/context.h"

namespace baleen::ops {

inline constexpr std::int32_t absent_id = -1;  // a token whose row another rank's part of the table has

namespace cpu {
void embedding_forward(const Tensor& out, const Tensor& ids, const Tensor& table);
std::size_t embedding_backward_workspace(std::int64_t tokens);
void embedding_backward(const Tensor& d_table, const Tensor& d_out, const Tensor& ids, void* workspace);
}  // namespace cpu
namespace gpu {
void embedding_forward(Stream& stream, const Tensor& out, const Tensor& ids, const Tensor& table);
std::size_t embedding_backward_workspace(std::int64_t tokens);
void embedding_backward(Stream& stream, const Tensor& d_table, const Tensor& d_out, const Tensor& ids, void* workspace);
}  // namespace gpu

// out [N, C], ids [N] int32 in [0, V) or absent_id (its row becomes zero, its gradient is left out), table [V, C]. The GPU cannot report an
// id outside: its row becomes NaN, and backward passes it over.
inline void embedding_forward(Context& context, const Tensor& out, const Tensor& ids, const Tensor& table) {
  dispatch(context, [&] { cpu::embedding_forward(out, ids, table); }, [&] { gpu::embedding_forward(context.stream, out, ids, table); });
}
// d_table [V, C] fp32, or bf16 where d_out is, += the rows of d_out [N, C]: each id's rows added in fp32 in the order of N and rounded once
// (no atomics: same bits for any thread count).
inline void embedding_backward(Context& context, const Tensor& d_table, const Tensor& d_out, const Tensor& ids) {
  const Arena::Scope scope(context.scratch);
  const Tensor sorted = workspace(
      context, "embedding gradient workspace", [&] { return cpu::embedding_backward_workspace(ids.elements()); },
      [&] { return gpu::embedding_backward_workspace(ids.elements()); });
  dispatch(
      context, [&] { cpu::embedding_backward(d_table, d_out, ids, sorted.data()); },
      [&] { gpu::embedding_backward(context.stream, d_table, d_out, ids, sorted.data()); });
}

}  // namespace baleen::ops
