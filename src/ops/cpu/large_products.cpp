#include "ops/cpu/large_products.h"

#include "ops/cpu/convert_rows.h"
#include "ops/cpu/product_cache.h"

namespace baleen::ops::cpu {

bool TiledProduct::suits(const Matrix& a) {
  return a.dtype == DType::bf16 && !processor_has(dnnl::cpu_isa::avx512_core_bf16);
}

TiledProduct::TiledProduct(const Matrix& out, const Matrix& a, const Matrix& b)
    : out_(out), a_(a), b_(b), rows_(rows_of(out), most_rows), columns_(columns_of(out), most_rows), depth_(columns_of(a), most_depth) {}

std::size_t TiledProduct::workspace_bytes() const {
  std::size_t scratchpad = 0;
  for (const std::int64_t rows : {rows_.tile, rows_.last()})
    for (const std::int64_t columns : {columns_.tile, columns_.last()})
      for (const std::int64_t depth : {depth_.tile, depth_.last()})
        for (const bool accumulate : {false, true})
          scratchpad = std::max(scratchpad, product_cache()
                                                .find(out_tile(nullptr, 0, rows, 0, columns), fp32_tile(nullptr, a_, rows, depth),
                                                      fp32_tile(nullptr, b_, depth, columns), sum_into(accumulate))
                                                .scratchpad_bytes());
  return a_bytes() + b_bytes() + out_bytes() + scratchpad;
}

void TiledProduct::run(bool accumulate, void* workspace) const {
  auto* a_space = static_cast<std::byte*>(workspace);
  std::byte *b_space = a_space + a_bytes(), *out_space = b_space + b_bytes(), *scratchpad = out_space + out_bytes();
  std::int64_t converted_row = -1, converted_depth = -1;  // what a's tile holds
  for (std::int64_t i = 0; i < rows_.extent; i += rows_.tile)
    for (std::int64_t j = 0; j < columns_.extent; j += columns_.tile) {
      const Matrix out = out_tile(out_space, i, rows_.size(i), j, columns_.size(j));
      const Matrix target = tile_of(out_, i, rows_.size(i), j, columns_.size(j));
      if (accumulate && out_.dtype == DType::bf16) convert_rows(out, target);
      for (std::int64_t l = 0; l < depth_.extent; l += depth_.tile) {
        const Matrix a = fp32_tile(a_space, a_, rows_.size(i), depth_.size(l)),
                     b = fp32_tile(b_space, b_, depth_.size(l), columns_.size(j));
        if (converted_row != i || converted_depth != l) convert_rows(a, tile_of(a_, i, rows_.size(i), l, depth_.size(l)));
        converted_row = i, converted_depth = l;
        convert_rows(b, tile_of(b_, l, depth_.size(l), j, columns_.size(j)));
        ProductCache& cache = product_cache();
        cache.find(out, a, b, sum_into(accumulate || l > 0)).execute(cache.stream(), out.data, a.data, b.data, scratchpad);
      }
      if (out_.dtype == DType::bf16) convert_rows(target, out);
    }
}

bool DeepProduct::suits(const Matrix& out, const Matrix& a) {
  return !a.transposed && columns_of(a) >= 4 * depth && columns_of(out) <= depth && processor_has(dnnl::cpu_isa::avx512_core);
}

DeepProduct::DeepProduct(const Matrix& out, const Matrix& a, const Matrix& b) : out_(out), a_(a), b_(b), depths_(columns_of(a), depth) {}

std::size_t DeepProduct::workspace_bytes() const {
  std::size_t scratchpad = 0;
  for (const std::int64_t size : {depths_.tile, depths_.last()})
    for (const bool accumulate : {false, true})
      scratchpad = std::max(
          scratchpad, product_cache().find(sum(nullptr), piece(nullptr, size), b_piece(0, size), sum_into(accumulate)).scratchpad_bytes());
  return piece_bytes() + sum_bytes() + scratchpad;
}

void DeepProduct::run(bool accumulate, void* workspace) const {
  auto* const space = static_cast<std::byte*>(workspace);
  const Matrix total = sum(space + piece_bytes());
  std::byte* const scratchpad = space + piece_bytes() + sum_bytes();
  if (accumulate && sum_bytes() != 0) convert_rows(total, out_);
  for (std::int64_t begin = 0; begin < depths_.extent; begin += depths_.tile) {
    const std::int64_t size = depths_.size(begin);
    const Matrix a = piece(space, size), b = b_piece(begin, size);
    convert_rows(a, tile_of(a_, 0, a_.rows, begin, size));
    ProductCache& cache = product_cache();
    cache.find(total, a, b, sum_into(accumulate || begin > 0)).execute(cache.stream(), total.data, a.data, b.data, scratchpad);
  }
  if (sum_bytes() != 0) convert_rows(out_, total);
}

}  // namespace baleen::ops::cpu
