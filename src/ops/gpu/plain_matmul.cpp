// Matrix products through a vendor's library that has no methods to choose from and nothing behind a product, as AMD's. matmul.cpp is for
// the other kind.
#include <limits>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "device/gpu_api.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/matmul_common.h"
#include "ops/matmul.h"
#include "ops/matmul_gelu.h"

namespace baleen::ops::gpu {
namespace {

// The library counts in ints. The stride of a single row is never used; the library wants one that is not too small.
int as_int(std::int64_t count) {
  BALEEN_CHECK(count <= std::numeric_limits<int>::max(), count);
  return static_cast<int>(count);
}
int stride_of(const Matrix& m) {
  return as_int(m.rows == 1 ? m.columns : m.stride);
}
gpublasDataType_t type_of(const Matrix& m) {
  return m.dtype == DType::bf16 ? gpublas_bf16 : gpublas_f32;
}
gpublasOperation_t operation_of(const Matrix& m) {
  return m.transposed ? gpublas_transpose : gpublas_normal;
}

class Handle {
 public:
  Handle() { blas_check(gpublasCreate(&handle_), "starting the matrix library"); }
  ~Handle() { gpublasDestroy(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  gpublasHandle_t get() const { return handle_; }

 private:
  gpublasHandle_t handle_ = nullptr;
};

// One a thread and device: a rank has one device and one thread that enqueues.
gpublasHandle_t handle_for(Stream& stream) {
  thread_local std::unordered_map<int, Handle> handles;
  const gpublasHandle_t handle = handles[gpu_stream_traits(stream).device].get();
  blas_check(gpublasSetStream(handle, native_stream(stream)), "choosing a stream");
  return handle;
}

}  // namespace

// The library thinks in columns: it computes outᵀ = bᵀ · aᵀ, and a row-major matrix is its transpose.
void matmul(Stream& stream, const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate, const Tensor& bias, void* workspace) {
  if (out.transposed) {
    BALEEN_CHECK(!bias.defined(), "a bias of an out that is stored transposed");
    return matmul(stream, out.transpose(), b.transpose(), a.transpose(), accumulate, bias, workspace);
  }
  check_shapes(out, a, b);
  if (out.rows == 0 || out.columns == 0) return;
  if (columns_of(a) == 0) {  // the sum of nothing
    BALEEN_CHECK(!bias.defined(), "a bias on a product of nothing");
    const std::size_t row = dtype_bytes(out.dtype);
    if (!accumulate)
      gpu_check(gpuMemset2DAsync(out.data, static_cast<std::size_t>(stride_of(out)) * row, 0, static_cast<std::size_t>(out.columns) * row,
                                 static_cast<std::size_t>(out.rows), native_stream(stream)),
                "filling with zeros");
    return;
  }
  const float one = 1.0f, before = accumulate ? 1.0f : 0.0f;
  blas_check(
      gpublasGemm(handle_for(stream), operation_of(b), operation_of(a), as_int(out.columns), as_int(out.rows), as_int(columns_of(a)), &one,
                  b.data, type_of(b), stride_of(b), a.data, type_of(a), stride_of(a), &before, out.data, type_of(out), stride_of(out)),
      "a matrix product");
  if (bias.defined()) bias_add(stream, Tensor(out.data, out.dtype, {out.rows, out.columns}), out.stride, bias);
}

bool matmul_gelu(Stream&, const Matrix&, const Matrix&, const Matrix&, const Matrix&, const Tensor&, void*) {
  return false;
}

bool matmul_gelu_backward(Stream&, const Matrix&, const Matrix&, const Matrix&, const Matrix&, void*) {
  return false;
}

}  // namespace baleen::ops::gpu
