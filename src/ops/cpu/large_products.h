// Products whose operands are cut into pieces that stay in the cache, each piece multiplied by the whole team.
#pragma once

#include "ops/cpu/matrix_tiles.h"

namespace baleen::ops::cpu {

// A product of bf16 matrices by fp32 tiles. The tiles are large enough that converting them costs little beside multiplying them, and small
// enough to stay in the cache in between.
class TiledProduct {
 public:
  static bool suits(const Matrix& a);
  TiledProduct(const Matrix& out, const Matrix& a, const Matrix& b);
  std::size_t workspace_bytes() const;
  void run(bool accumulate, void* workspace) const;

 private:
  static constexpr std::int64_t most_rows = 512, most_depth = 1024;
  static constexpr std::int64_t padding = 16;  // keeps rows of a power of two apart in the cache

  static std::size_t tile_bytes(std::int64_t rows, std::int64_t columns) {
    const std::int64_t longest = std::max(rows, columns);  // whichever way round it is stored
    return aligned_bytes(rows * columns + longest * padding, DType::f32);
  }
  std::size_t a_bytes() const { return tile_bytes(rows_.tile, depth_.tile); }
  std::size_t b_bytes() const { return tile_bytes(depth_.tile, columns_.tile); }
  std::size_t out_bytes() const { return out_.dtype == DType::bf16 ? tile_bytes(rows_.tile, columns_.tile) : 0; }

  // Room for `rows` and `columns` as the product sees them, stored the way `like` is.
  static Matrix fp32_tile(void* space, const Matrix& like, std::int64_t rows, std::int64_t columns) {
    if (like.transposed) return fp32_tile(space, like.transpose(), columns, rows).transpose();
    return Matrix(space, DType::f32, rows, columns, columns + padding);
  }
  // Where a tile of the sum forms: in place where that is fp32.
  Matrix out_tile(void* space, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) const {
    return out_.dtype == DType::f32 ? tile_of(out_, row, rows, column, columns) : fp32_tile(space, out_, rows, columns);
  }

  Matrix out_, a_, b_;
  Cut rows_, columns_, depth_;
};

// A product that sums over tens of thousands of columns, as the head's does for the gradient of its input: oneDNN's kernels
// for AVX-512 and AMX walk through all of b for every few rows of a. Here b's rows are taken in pieces that stay in the cache, and the sum
// forms in fp32. A piece of a is copied, because oneDNN is fast only where rows follow each other without a gap.
class DeepProduct {
 public:
  static bool suits(const Matrix& out, const Matrix& a);
  DeepProduct(const Matrix& out, const Matrix& a, const Matrix& b);
  std::size_t workspace_bytes() const;
  void run(bool accumulate, void* workspace) const;

 private:
  static constexpr std::int64_t depth = 2048;
  std::size_t piece_bytes() const { return aligned_bytes(a_.rows * depths_.tile, a_.dtype); }
  std::size_t sum_bytes() const { return out_.dtype == DType::f32 ? 0 : aligned_bytes(out_.rows * out_.columns, DType::f32); }
  Matrix piece(void* space, std::int64_t size) const { return Matrix(space, a_.dtype, a_.rows, size, size); }
  Matrix b_piece(std::int64_t begin, std::int64_t size) const { return tile_of(b_, begin, size, 0, columns_of(b_)); }
  // Where the sum forms: in place where that is fp32.
  Matrix sum(void* space) const {
    return out_.dtype == DType::f32 ? out_ : Matrix(space, DType::f32, out_.rows, out_.columns, out_.columns);
  }

  Matrix out_, a_, b_;
  Cut depths_;
};

}  // namespace baleen::ops::cpu
