// Parts of matrices as products see them.
#pragma once

#include <algorithm>
#include <utility>

#include "ops/matmul.h"

namespace baleen::ops::cpu {

// The rows and columns of a matrix as the product sees it.
inline std::int64_t rows_of(const Matrix& m) {
  return m.transposed ? m.columns : m.rows;
}
inline std::int64_t columns_of(const Matrix& m) {
  return m.transposed ? m.rows : m.columns;
}

// Whether rows follow each other without a gap.
inline bool contiguous(const Matrix& m) {
  return m.rows <= 1 || m.stride == m.columns;
}

// Rows [row, row + rows) and columns [column, column + columns) of a matrix as the product sees it.
inline Matrix tile_of(const Matrix& m, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
  Matrix tile = m;
  if (m.transposed) std::swap(row, column), std::swap(rows, columns);
  tile.rows = rows, tile.columns = columns;
  if (m.data != nullptr)
    tile.data = static_cast<std::byte*>(m.data) + static_cast<std::size_t>(row * m.stride + column) * dtype_bytes(m.dtype);
  return tile;
}

// [0, extent) cut into equal tiles of whole `grain`s and at most about `most`, of which the last may be shorter.
struct Cut {
  std::int64_t extent, tile;
  Cut(std::int64_t extent_, std::int64_t most, std::int64_t grain = 16) : extent(extent_) {
    const std::int64_t parts = (extent + most - 1) / most;
    tile = std::min(extent, ((extent + parts - 1) / parts + grain - 1) / grain * grain);
  }
  std::int64_t tiles() const { return (extent + tile - 1) / tile; }
  std::int64_t last() const { return extent - (extent - 1) / tile * tile; }
  std::int64_t size(std::int64_t begin) const { return std::min(tile, extent - begin); }
};

// Workspaces are cut into spaces that begin where a cache line does.
inline std::size_t aligned_bytes(std::int64_t elements, DType dtype) {
  return (static_cast<std::size_t>(elements) * dtype_bytes(dtype) + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
}

}  // namespace baleen::ops::cpu
