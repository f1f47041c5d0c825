// Products cut into pieces that stay in one processor's own cache, each piece brought there and multiplied by one thread: nobody waits for
// the others between pieces. They pay where the processor multiplies bf16, most on AMX, whose products take less time than bringing their
// operands.
#pragma once

#include "ops/cpu/matrix_tiles.h"
#include "ops/cpu/product_cache.h"

namespace baleen::ops::cpu {

// Bytes that one thread needs for a piece of b, packed, and for the library.
struct ThreadSpace {
  std::size_t packed = 0, scratchpad = 0;
};

// A product with tens of thousands of columns of weights that lie as [columns, depth], as the head's logits are. oneDNN's kernels would
// walk through all of the weights for every few rows, and write rows that are far apart. Here some hundred columns' weights at a time are
// packed as the library likes them, multiplied into a tile, and the tile is copied to its place, past the cache.
class WideProduct {
 public:
  static bool suits(const Matrix& out, const Matrix& a, const Matrix& b);
  WideProduct(const Matrix& out, const Matrix& a, const Matrix& b);
  std::size_t workspace_bytes() const;
  void run(bool accumulate, void* workspace) const;  // accumulate: false

 private:
  static constexpr std::int64_t most_rows = 512, column_grain = 64;
  // So many that every thread has as many tiles, and that a piece of b stays in its cache.
  static std::int64_t tile_columns(std::int64_t columns, std::int64_t depth);
  std::size_t tile_bytes() const { return aligned_bytes(rows_.tile * columns_.tile, out_.dtype); }
  Matrix tile(void* space, std::int64_t rows, std::int64_t columns) const { return Matrix(space, out_.dtype, rows, columns, columns); }
  Matrix a_rows(std::int64_t begin, std::int64_t size) const { return tile_of(a_, begin, size, 0, columns_of(a_)); }
  Matrix b_columns(std::int64_t begin, std::int64_t size) const { return tile_of(b_, 0, rows_of(b_), begin, size); }
  ThreadSpace space() const;

  Matrix out_, a_, b_;
  Cut rows_, columns_;
};

// The gradient of a weight, aᵀ · b summed over the tokens into fp32: the library's kernel for a transposed a is half as fast as the plain
// one. Here a slice of a's columns at a time is transposed, and b is packed once for all slices.
class TransposedProduct {
 public:
  static bool suits(const Matrix& out, const Matrix& a, const Matrix& b);
  TransposedProduct(const Matrix& out, const Matrix& a, const Matrix& b);
  std::size_t workspace_bytes() const;
  void run(bool accumulate, void* workspace) const;

 private:
  static constexpr std::int64_t most_rows = 256, most_depth = 1024, least = 64;
  std::size_t slice_bytes() const { return aligned_bytes(rows_.tile * depths_.tile, a_.dtype); }
  // Columns [begin, begin + size) of a, from its row `depth` on, transposed.
  Matrix slice(void* space, std::int64_t size, std::int64_t depth) const { return Matrix(space, a_.dtype, size, depth, depth); }
  Matrix b_rows(std::int64_t begin, std::int64_t size) const { return tile_of(b_, begin, size, 0, b_.columns); }
  Matrix out_rows(std::int64_t begin, std::int64_t size) const { return tile_of(out_, begin, size, 0, out_.columns); }
  std::size_t scratchpad_bytes() const;

  Matrix out_, a_, b_;
  Cut rows_, depths_;
};

// A product that sums over tens of thousands of columns, as DeepProduct's, with so many rows that each thread has hundreds of its own. The
// sum is of `most_parts` sums, whatever the threads, so that one that is slower than the others takes fewer of them.
class DeepRowsProduct {
 public:
  static bool suits(const Matrix& out, const Matrix& a, const Matrix& b);
  DeepRowsProduct(const Matrix& out, const Matrix& a, const Matrix& b);
  std::size_t workspace_bytes() const;
  void run(bool accumulate, void* workspace) const;

 private:
  static constexpr std::int64_t most_depth = 512, least_rows = 256, most_rows = 512, most_parts = 4;
  static constexpr std::size_t most_sums = std::size_t{8} << 20;  // bytes a thread of all parts' sums, where some rows' take less
  // Whole tiles of rows that are summed before the next ones are.
  static std::int64_t rows_of_group(std::int64_t tile, std::int64_t columns);
  std::size_t piece_bytes() const { return aligned_bytes(rows_.tile * depths_.tile, a_.dtype); }
  std::size_t sum_bytes() const { return aligned_bytes(groups_.tile * out_.columns, DType::f32); }
  Matrix piece(void* space, std::int64_t rows, std::int64_t depth) const { return Matrix(space, a_.dtype, rows, depth, depth); }
  // Part `part` of the sum of a group of `rows` rows; sums: of all parts.
  Matrix sum(std::byte* sums, std::int64_t part, std::int64_t rows) const {
    return Matrix(sums + static_cast<std::size_t>(part) * sum_bytes(), DType::f32, rows, out_.columns, out_.columns);
  }
  Matrix b_rows(std::int64_t begin, std::int64_t size) const { return tile_of(b_, begin, size, 0, columns_of(b_)); }
  ThreadSpace space() const;
  void run_group(bool accumulate, const Matrix& out, const Matrix& a, std::byte* workspace, const ThreadSpace& one) const;

  Matrix out_, a_, b_;
  Cut rows_, depths_, parts_, groups_;  // parts_: of the pieces that depths_ makes; groups_: of rows
};

// A product of a layer. Every thread of the library's own packs all of b for itself, and gets half of the rows however soon it is done;
// here all pack b together, and whoever is free multiplies the next rows. b, packed, stays in a processor's second-level cache.
// With few rows the library gives its threads columns instead, and is as fast.
class RowsProduct {
 public:
  static bool suits(const Matrix& out, const Matrix& a, const Matrix& b);
  RowsProduct(const Matrix& out, const Matrix& a, const Matrix& b);
  std::size_t workspace_bytes() const;
  void run(Addend addend, void* workspace, void* bias = nullptr) const;  // bias: of out's dtype, which is a's then

 private:
  static constexpr std::int64_t most_rows = 128, least_extent = 64, most_weights = std::int64_t{1} << 20;
  Matrix a_rows(std::int64_t begin, std::int64_t size) const { return tile_of(a_, begin, size, 0, columns_of(a_)); }
  Matrix out_rows(std::int64_t begin, std::int64_t size) const { return tile_of(out_, begin, size, 0, out_.columns); }
  Packing& packing() const { return product_cache().packing(rows_.tile, b_, out_.dtype); }
  std::size_t scratchpad_bytes() const;

  Matrix out_, a_, b_;
  Cut rows_;
};

}  // namespace baleen::ops::cpu
