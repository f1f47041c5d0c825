// Matrix products: out = op(a) · op(b), or out += with accumulate. On the CPU through oneDNN, on the GPU
// through its vendor's library.
#pragma once

#include <cstdint>

#include "ops/bias.h"
#include "ops/context.h"

namespace baleen::ops {

// A row-major matrix inside a larger array: `stride` elements from one row to the next.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0, columns = 0, stride = 0;
  bool transposed = false;  // use as its transpose; rows and columns describe it as stored

  Matrix() = default;
  Matrix(void* data_, DType dtype_, std::int64_t rows_, std::int64_t columns_, std::int64_t stride_)
      : data(data_), dtype(dtype_), rows(rows_), columns(columns_), stride(stride_) {}
  // A 2-D tensor as it is.
  Matrix(const Tensor& tensor) : Matrix(tensor.data(), tensor.dtype(), tensor.size(0), tensor.size(1), tensor.size(1)) {}  // NOLINT
  Matrix transpose() const {
    Matrix view = *this;
    view.transposed = !transposed;
    return view;
  }
  // Columns [begin, begin + count) of a matrix that is not transposed.
  Matrix column_range(std::int64_t begin, std::int64_t count) const;
};

namespace cpu {
// Bytes of workspace the product needs.
std::size_t matmul_workspace(const Matrix& out, const Matrix& a, const Matrix& b);
void matmul(const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate, void* workspace);
void matmul_with_bias(const Matrix& out, const Matrix& a, const Matrix& b, const Tensor& bias, void* workspace);
}  // namespace cpu
namespace gpu {
// The same for every product: the library chooses a method that fits in it.
inline constexpr std::size_t matmul_workspace = std::size_t{32} << 20;
// `bias` [columns of out] of out's dtype is added to every row; undefined: none.
void matmul(Stream& stream, const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate, const Tensor& bias, void* workspace);
}  // namespace gpu

// out[M, N] (+)= a[M, K] · b[K, N] after transposition. fp32, or bf16 inputs with an fp32 or bf16 out; sums in fp32, what is accumulated
// into included, and rounded once.
// A dimension of 0 is allowed: the product of nothing is zero.
inline void matmul(Context& context, const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate = false) {
  const Arena::Scope scope(context.scratch);
  const Tensor space =
      workspace(context, "matmul workspace", [&] { return cpu::matmul_workspace(out, a, b); }, [] { return gpu::matmul_workspace; });
  dispatch(
      context, [&] { cpu::matmul(out, a, b, accumulate, space.data()); },
      [&] { gpu::matmul(context.stream, out, a, b, accumulate, Tensor(), space.data()); });
}

// out[M, N] = a[M, K] · b[K, N] + bias[N], for an out that is stored as it is. One kernel where the library has it.
inline void matmul_with_bias(Context& context, const Matrix& out, const Matrix& a, const Matrix& b, const Tensor& bias) {
  const Arena::Scope scope(context.scratch);
  const Tensor space =
      workspace(context, "matmul workspace", [&] { return cpu::matmul_workspace(out, a, b); }, [] { return gpu::matmul_workspace; });
  dispatch(
      context, [&] { cpu::matmul_with_bias(out, a, b, bias, space.data()); },
      [&] { gpu::matmul(context.stream, out, a, b, false, bias, space.data()); });
}

}  // namespace baleen::ops
