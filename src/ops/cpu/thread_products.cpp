#include "ops/cpu/thread_products.h"

#include <omp.h>

#include "ops/cpu/convert_rows.h"
#include "ops/cpu/copy_rows.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/product_cache.h"
#include "ops/cpu/transpose.h"
#include "ops/elementwise.h"

namespace baleen::ops::cpu {
namespace {

// What is larger than this has left the caches before it is read again, as logits have.
constexpr std::size_t cached_bytes = std::size_t{32} << 20;

bool fast_halves(const Matrix& a) {
  return a.dtype == DType::bf16 && processor_has(dnnl::cpu_isa::avx512_core_bf16);
}

// Smaller products, of multiplications, are done before the threads have been woken twice.
bool worth_packing(const Matrix& out, const Matrix& a) {
  constexpr std::int64_t least = std::int64_t{1} << 25;
  return out.rows * out.columns * columns_of(a) >= least;
}

// What of [0, extent) a part has, at most `most`, where every thread has as many parts; at least `least`, and then some threads have fewer.
std::int64_t even_part(std::int64_t extent, std::int64_t most, std::int64_t least = 1) {
  const std::int64_t team = omp_get_max_threads(), parts = ((extent + most - 1) / most + team - 1) / team * team;
  return std::max((extent + parts - 1) / parts, least);
}

}  // namespace

bool WideProduct::suits(const Matrix& out, const Matrix& a, const Matrix& b) {
  constexpr std::int64_t least_rows = 64, least_columns = 8192, most_depth = 2048;
  return fast_halves(a) && contiguous(a) && out.dtype == DType::bf16 && !a.transposed && b.transposed && out.rows >= least_rows &&
         out.columns >= least_columns && columns_of(a) <= most_depth;
}

WideProduct::WideProduct(const Matrix& out, const Matrix& a, const Matrix& b)
    : out_(out), a_(a), b_(b), rows_(out.rows, most_rows), columns_(out.columns, tile_columns(out.columns, columns_of(a)), column_grain) {}

std::int64_t WideProduct::tile_columns(std::int64_t columns, std::int64_t depth) {
  constexpr std::int64_t elements = std::int64_t{1} << 18, least = 256, most = 512;  // half a mebibyte
  return even_part(columns, std::clamp(elements / depth / column_grain * column_grain, least, most), column_grain);
}

ThreadSpace WideProduct::space() const {
  const OneThread alone;
  ProductCache& cache = product_cache();
  ThreadSpace space;
  for (const std::int64_t columns : {columns_.tile, columns_.last()}) {
    const Packing& packing = cache.packing(rows_.tile, b_columns(0, columns), out_.dtype);
    space.packed = std::max(space.packed, packing.bytes());
    for (const std::int64_t rows : {rows_.tile, rows_.last()}) {
      const Product& product = cache.find(tile(nullptr, rows, columns), a_rows(0, rows), b_columns(0, columns), Addend::none, &packing);
      space.scratchpad = std::max(space.scratchpad, product.scratchpad_bytes());
    }
  }
  space.scratchpad = aligned_bytes(static_cast<std::int64_t>(space.scratchpad), DType::u8);
  return space;
}

std::size_t WideProduct::workspace_bytes() const {
  const ThreadSpace one = space();
  return static_cast<std::size_t>(omp_get_max_threads()) * (one.packed + tile_bytes() + one.scratchpad);
}

void WideProduct::run(bool accumulate, void* workspace) const {
  BALEEN_CHECK(!accumulate, accumulate);
  const ThreadSpace one = space();
  const bool streamed = static_cast<std::size_t>(out_.rows * out_.columns) * dtype_bytes(out_.dtype) >= cached_bytes;
  parallel_tasks(columns_.tiles(), [&](std::int64_t task, int thread) {
    const OneThread alone;
    ProductCache& cache = product_cache();
    std::byte* const packed =
        static_cast<std::byte*>(workspace) + static_cast<std::size_t>(thread) * (one.packed + tile_bytes() + one.scratchpad);
    std::byte *const tile_space = packed + one.packed, *const scratchpad = tile_space + tile_bytes();
    const std::int64_t column = task * columns_.tile, columns = columns_.size(column);
    const Matrix b = b_columns(column, columns);
    Packing& packing = cache.packing(rows_.tile, b, out_.dtype);
    packing.run(cache.stream(), packed, b.data);
    for (std::int64_t row = 0; row < rows_.extent; row += rows_.tile) {
      const std::int64_t rows = rows_.size(row);
      const Matrix a = a_rows(row, rows), out = tile(tile_space, rows, columns);
      cache.find(out, a, b, Addend::none, &packing).execute(cache.stream(), out.data, a.data, packed, scratchpad);
      copy_rows(tile_of(out_, row, rows, column, columns), out, streamed);
    }
  });
}

bool TransposedProduct::suits(const Matrix& out, const Matrix& a, const Matrix& b) {
  return fast_halves(a) && worth_packing(out, a) && contiguous(out) && out.dtype == DType::f32 && a.transposed && !b.transposed &&
         columns_of(a) >= least && rows_of(out) >= least * omp_get_max_threads() && columns_of(out) >= least;
}

TransposedProduct::TransposedProduct(const Matrix& out, const Matrix& a, const Matrix& b)
    : out_(out), a_(a), b_(b), rows_(out.rows, even_part(out.rows, most_rows)), depths_(columns_of(a), most_depth) {}

std::size_t TransposedProduct::scratchpad_bytes() const {
  std::size_t bytes = 0;
  for (const std::int64_t depth : {depths_.tile, depths_.last()}) {
    const Packing& packing = product_cache().packing(rows_.tile, b_rows(0, depth), out_.dtype);
    const OneThread alone;
    for (const std::int64_t rows : {rows_.tile, rows_.last()})
      for (const bool accumulate : {false, true})
        bytes = std::max(
            bytes,
            product_cache().find(out_rows(0, rows), slice(nullptr, rows, depth), b_, sum_into(accumulate), &packing).scratchpad_bytes());
  }
  return aligned_bytes(static_cast<std::int64_t>(bytes), DType::u8);
}

std::size_t TransposedProduct::workspace_bytes() const {
  const std::size_t packed = product_cache().packing(rows_.tile, b_rows(0, depths_.tile), out_.dtype).bytes();
  return static_cast<std::size_t>(depths_.tiles()) * packed +
         static_cast<std::size_t>(omp_get_max_threads()) * (slice_bytes() + scratchpad_bytes());
}

void TransposedProduct::run(bool accumulate, void* workspace) const {
  ProductCache& own_cache = product_cache();
  auto* const packed = static_cast<std::byte*>(workspace);
  const std::size_t packed_bytes = own_cache.packing(rows_.tile, b_rows(0, depths_.tile), out_.dtype).bytes(),
                    scratchpad_bytes = this->scratchpad_bytes();
  const auto packed_piece = [&](std::int64_t depth) { return packed + static_cast<std::size_t>(depth / depths_.tile) * packed_bytes; };
  std::byte* const spaces = packed_piece(depths_.tiles() * depths_.tile);
  for (std::int64_t depth = 0; depth < depths_.extent; depth += depths_.tile) {
    const Matrix b = b_rows(depth, depths_.size(depth));
    own_cache.packing(rows_.tile, b, out_.dtype).run(own_cache.stream(), packed_piece(depth), b.data);
  }
  const Packing &packing = own_cache.packing(rows_.tile, b_rows(0, depths_.tile), out_.dtype),
                &last_packing = own_cache.packing(rows_.tile, b_rows(0, depths_.last()), out_.dtype);
  parallel_tasks(rows_.tiles(), [&](std::int64_t task, int thread) {
    const OneThread alone;
    ProductCache& cache = product_cache();
    std::byte *const space = spaces + static_cast<std::size_t>(thread) * (slice_bytes() + scratchpad_bytes), *const scratchpad =
                                                                                                                 space + slice_bytes();
    const std::int64_t row = task * rows_.tile, rows = rows_.size(row);
    const Matrix out = out_rows(row, rows);
    for (std::int64_t depth = 0; depth < depths_.extent; depth += depths_.tile) {
      const std::int64_t size = depths_.size(depth);
      const Matrix a = slice(space, rows, size);
      transpose_copy(a, tile_of(a_.transpose(), depth, size, row, rows));
      cache.find(out, a, b_, sum_into(accumulate || depth > 0), size == depths_.tile ? &packing : &last_packing)
          .execute(cache.stream(), out.data, a.data, packed_piece(depth), scratchpad);
    }
  });
}

bool DeepRowsProduct::suits(const Matrix& out, const Matrix& a, const Matrix& b) {
  constexpr std::int64_t least_depth = 8192, most_columns = 2048;
  return fast_halves(a) && !a.transposed && !b.transposed && columns_of(a) >= least_depth && columns_of(out) <= most_columns &&
         out.rows >= least_rows * omp_get_max_threads();
}

DeepRowsProduct::DeepRowsProduct(const Matrix& out, const Matrix& a, const Matrix& b)
    : out_(out),
      a_(a),
      b_(b),
      rows_(out.rows, even_part(out.rows, most_rows)),
      depths_(columns_of(a), most_depth),
      parts_(depths_.tiles(), (depths_.tiles() + most_parts - 1) / most_parts, 1),
      groups_(out.rows, rows_of_group(rows_.tile, out.columns), rows_.tile) {}

std::int64_t DeepRowsProduct::rows_of_group(std::int64_t tile, std::int64_t columns) {
  const auto tile_sums = static_cast<std::size_t>(most_parts * tile * columns) * sizeof(float);
  return std::max(std::int64_t{1}, static_cast<std::int64_t>(static_cast<std::size_t>(omp_get_max_threads()) * most_sums / tile_sums)) *
         tile;
}

ThreadSpace DeepRowsProduct::space() const {
  const OneThread alone;
  ProductCache& cache = product_cache();
  ThreadSpace space;
  for (const std::int64_t depth : {depths_.tile, depths_.last()}) {
    const Packing& packing = cache.packing(rows_.tile, b_rows(0, depth), DType::f32);
    space.packed = std::max(space.packed, packing.bytes());
    for (const std::int64_t rows : {rows_.tile, rows_.last()})
      for (const bool accumulate : {false, true}) {
        const Matrix total = sum(nullptr, 0, rows);
        const Product& product = cache.find(total, piece(nullptr, rows, depth), b_rows(0, depth), sum_into(accumulate), &packing);
        space.scratchpad = std::max(space.scratchpad, product.scratchpad_bytes());
      }
  }
  space.scratchpad = aligned_bytes(static_cast<std::int64_t>(space.scratchpad), DType::u8);
  return space;
}

std::size_t DeepRowsProduct::workspace_bytes() const {
  const ThreadSpace one = space();
  return static_cast<std::size_t>(parts_.tiles()) * sum_bytes() +
         static_cast<std::size_t>(omp_get_max_threads()) * (piece_bytes() + one.packed + one.scratchpad);
}

void DeepRowsProduct::run(bool accumulate, void* workspace) const {
  const ThreadSpace one = space();
  for (std::int64_t row = 0; row < groups_.extent; row += groups_.tile) {
    const std::int64_t rows = groups_.size(row);
    run_group(accumulate, tile_of(out_, row, rows, 0, out_.columns), tile_of(a_, row, rows, 0, columns_of(a_)),
              static_cast<std::byte*>(workspace), one);
  }
}

// out and a: of the group alone.
void DeepRowsProduct::run_group(bool accumulate, const Matrix& out, const Matrix& a, std::byte* workspace, const ThreadSpace& one) const {
  std::byte* const spaces = workspace + static_cast<std::size_t>(parts_.tiles()) * sum_bytes();
  const std::int64_t tiles = (out.rows + rows_.tile - 1) / rows_.tile;
  parallel_tasks(parts_.tiles() * tiles, [&](std::int64_t task, int thread) {
    const OneThread alone;
    ProductCache& cache = product_cache();
    std::byte* const space = spaces + static_cast<std::size_t>(thread) * (piece_bytes() + one.packed + one.scratchpad);
    std::byte *const packed = space + piece_bytes(), *const scratchpad = packed + one.packed;
    const std::int64_t part = task / tiles, row = task % tiles * rows_.tile;
    const std::int64_t rows = std::min(rows_.tile, out.rows - row);
    const Matrix total = tile_of(sum(workspace, part, out.rows), row, rows, 0, out.columns);
    bool begun = accumulate && part == 0;
    if (begun) convert_rows(total, tile_of(out, row, rows, 0, out.columns));
    const std::int64_t begin = part * parts_.tile * depths_.tile, end = std::min(depths_.extent, (part + 1) * parts_.tile * depths_.tile);
    for (std::int64_t depth = begin; depth < end; depth += depths_.tile) {
      const std::int64_t size = depths_.size(depth);
      const Matrix a_piece = piece(space, rows, size), b = b_rows(depth, size);
      copy_rows(a_piece, tile_of(a, row, rows, depth, size), /*streamed=*/false);
      Packing& packing = cache.packing(rows_.tile, b, DType::f32);
      packing.run(cache.stream(), packed, b.data);
      cache.find(total, a_piece, b, sum_into(begun), &packing).execute(cache.stream(), total.data, a_piece.data, packed, scratchpad);
      begun = true;
    }
  });
  const auto flat = [&](std::int64_t part) { return Tensor(sum(workspace, part, out.rows).data, DType::f32, {out.rows * out.columns}); };
  for (std::int64_t part = 1; part < parts_.tiles(); ++part) add(flat(0), flat(0), flat(part));
  convert_rows(out, sum(workspace, 0, out.rows));
}

bool RowsProduct::suits(const Matrix& out, const Matrix& a, const Matrix& b) {
  return fast_halves(a) && contiguous(a) && contiguous(out) && !a.transposed && out.rows >= 2 * most_rows * omp_get_max_threads() &&
         out.columns >= least_extent && columns_of(a) >= least_extent && b.rows * b.columns <= most_weights && worth_packing(out, a);
}

RowsProduct::RowsProduct(const Matrix& out, const Matrix& a, const Matrix& b)
    : out_(out), a_(a), b_(b), rows_(out.rows, even_part(out.rows, most_rows)) {}

std::size_t RowsProduct::scratchpad_bytes() const {
  const Packing& packed = packing();
  const OneThread alone;
  std::size_t bytes = 0;
  for (const std::int64_t rows : {rows_.tile, rows_.last()})
    for (const Addend addend : {Addend::none, Addend::out, Addend::bias})
      if (addend != Addend::bias || out_.dtype == a_.dtype)
        bytes = std::max(bytes, product_cache().find(out_rows(0, rows), a_rows(0, rows), b_, addend, &packed).scratchpad_bytes());
  return aligned_bytes(static_cast<std::int64_t>(bytes), DType::u8);
}

std::size_t RowsProduct::workspace_bytes() const {
  return packing().bytes() + static_cast<std::size_t>(omp_get_max_threads()) * scratchpad_bytes();
}

void RowsProduct::run(Addend addend, void* workspace, void* bias) const {
  Packing& own_packing = packing();
  auto* const packed = static_cast<std::byte*>(workspace);
  std::byte* const scratchpads = packed + own_packing.bytes();
  const std::size_t scratchpad_bytes = this->scratchpad_bytes();
  own_packing.run(product_cache().stream(), packed, b_.data);
  parallel_tasks(rows_.tiles(), [&](std::int64_t task, int thread) {
    const OneThread alone;
    ProductCache& cache = product_cache();
    const std::int64_t row = task * rows_.tile, rows = rows_.size(row);
    const Matrix out = out_rows(row, rows), a = a_rows(row, rows);
    cache.find(out, a, b_, addend, &own_packing)
        .execute(cache.stream(), out.data, a.data, packed, scratchpads + static_cast<std::size_t>(thread) * scratchpad_bytes, bias);
  });
}

}  // namespace baleen::ops::cpu
