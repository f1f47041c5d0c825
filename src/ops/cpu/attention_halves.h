// Attention of bf16 on processors that multiply it: the formulas and the order of attention.cpp and attention_backward.cpp, in tiles that
// are larger, whose products are the matrix library's. Probabilities and gradients of scores are rounded to bf16 before they are
// multiplied, as the GPU's kernels do (T. Dao, "FlashAttention-2", arXiv 2307.08691).
#pragma once

#include <algorithm>

#include "ops/attention.h"
#include "ops/cpu/matrix_tiles.h"
#include "ops/cpu/product_cache.h"

namespace baleen::ops::cpu {

// Shapes that it takes, where the processor has the instructions: whole sequences, of whole 64 tokens, of heads of whole 32 elements.
// Others take the way of fp32.
bool multiplies_halves(const AttentionShape& shape, DType dtype, bool documents);

std::size_t halves_forward_workspace(const AttentionShape& shape);
void halves_forward(const AttentionShape& shape, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                    void* workspace);
std::size_t halves_backward_workspace(const AttentionShape& shape);
void halves_backward(const AttentionShape& shape, const Tensor& d_q, const Tensor& d_k, const Tensor& d_v, const Tensor& d_out,
                     const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse, void* workspace);

// What both passes share: how a sequence is cut, and a thread's products, whose operands lie without gaps.
class HalvesTiles {
 public:
  explicit HalvesTiles(const AttentionShape& shape);
  std::int64_t tile() const { return tile_; }
  std::int64_t tiles() const { return (length_ + tile_ - 1) / tile_; }
  std::int64_t size(std::int64_t index) const { return std::min(tile_, length_ - index * tile_); }

  // visit(queries, keys) for each size of a pair of tiles that the causal mask leaves.
  template <class Visit>
  void for_sizes(const Visit& visit) const {
    const std::int64_t last = size(tiles() - 1);
    if (tiles() > 1) visit(tile_, tile_), visit(last, tile_);
    visit(last, last);
  }

 private:
  std::int64_t length_, tile_;
};

// [rows, columns] without gaps.
inline Matrix dense(void* data, DType dtype, std::int64_t rows, std::int64_t columns) {
  return Matrix(data, dtype, rows, columns, columns);
}
inline void multiply(const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate, void* scratchpad) {
  ProductCache& cache = product_cache();
  cache.find(out, a, b, sum_into(accumulate)).execute(cache.stream(), out.data, a.data, b.data, scratchpad);
}
inline std::size_t scratchpad_of(const Matrix& out, const Matrix& a, const Matrix& b) {
  std::size_t bytes = 0;
  for (const bool accumulate : {false, true})
    bytes = std::max(bytes, product_cache().find(out, a, b, sum_into(accumulate)).scratchpad_bytes());
  return aligned_bytes(static_cast<std::int64_t>(bytes), DType::u8);
}

// `Space` is what a thread needs, built on an arena; all threads' lie one behind the other.
template <class Space>
std::size_t thread_bytes(const AttentionShape& shape, std::int64_t tile, std::size_t scratchpad_bytes) {
  Arena arena;
  Space(shape, tile, scratchpad_bytes, arena);
  return aligned_bytes(static_cast<std::int64_t>(arena.peak()), DType::u8);
}
template <class Space>
Space thread_space(const AttentionShape& shape, std::int64_t tile, std::size_t scratchpad_bytes, void* workspace, int thread,
                   std::size_t bytes) {
  Arena arena;
  arena.bind(static_cast<std::byte*>(workspace) + static_cast<std::size_t>(thread) * bytes, bytes);
  return Space(shape, tile, scratchpad_bytes, arena);
}
template <class T>
T* take(Arena& arena, const char* name, std::int64_t count) {
  return static_cast<T*>(allocate(arena, name, dtype_of<T>::value, {count}).data());
}

}  // namespace baleen::ops::cpu
