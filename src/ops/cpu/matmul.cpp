// Matrix products through oneDNN's matmul primitive (product_cache.h).
//
// oneDNN multiplies bf16 only with AVX-512, and fast only where the processor has instructions for it. Elsewhere the product is cut into
// tiles that are converted to fp32, multiplied and summed in fp32, and rounded once.
#include "ops/matmul.h"

#include <cstring>

#include "ops/cpu/large_products.h"
#include "ops/cpu/product_cache.h"
#include "ops/cpu/thread_products.h"

namespace baleen::ops {

Matrix Matrix::column_range(std::int64_t begin, std::int64_t count) const {
  BALEEN_CHECK(!transposed && begin >= 0 && count >= 0 && begin + count <= columns, transposed, begin, count, columns);
  Matrix view = *this;
  view.columns = count;
  if (data != nullptr) view.data = static_cast<std::byte*>(data) + static_cast<std::size_t>(begin) * dtype_bytes(dtype);
  return view;
}

namespace cpu {
namespace {

void check_shapes(const Matrix& out, const Matrix& a, const Matrix& b) {
  BALEEN_CHECK(rows_of(a) == rows_of(out) && columns_of(a) == rows_of(b) && columns_of(b) == columns_of(out), rows_of(out), columns_of(out),
               rows_of(a), columns_of(a), rows_of(b), columns_of(b));
  for (const Matrix* m : {&out, &a, &b}) BALEEN_CHECK(m->rows <= 1 || m->stride >= m->columns, m->rows, m->columns, m->stride);
  BALEEN_CHECK(a.dtype == b.dtype && (out.dtype == a.dtype || out.dtype == DType::f32), dtype_name(out.dtype), dtype_name(a.dtype),
               dtype_name(b.dtype));
}

// Row-major matrices can be written transposed only by writing (op(a) · op(b))ᵀ = op(b)ᵀ · op(a)ᵀ.
bool empty(const Matrix& out, const Matrix& a) {
  return rows_of(out) == 0 || columns_of(out) == 0 || columns_of(a) == 0;
}

void fill_zero(const Matrix& m) {
  for (std::int64_t row = 0; row < m.rows; ++row)
    std::memset(static_cast<std::byte*>(m.data) + static_cast<std::size_t>(row * m.stride) * dtype_bytes(m.dtype), 0,
                static_cast<std::size_t>(m.columns) * dtype_bytes(m.dtype));
}

// body(the product) for the way in which a product of this shape is cut; false where the library does all of it at once.
template <class Body>
bool in_pieces(const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate, const Body& body) {
  if (TiledProduct::suits(a)) return body(TiledProduct(out, a, b)), true;
  if (DeepRowsProduct::suits(out, a, b)) return body(DeepRowsProduct(out, a, b)), true;
  if (DeepProduct::suits(out, a)) return body(DeepProduct(out, a, b)), true;
  if (TransposedProduct::suits(out, a, b)) return body(TransposedProduct(out, a, b)), true;
  if (!accumulate && WideProduct::suits(out, a, b)) return body(WideProduct(out, a, b)), true;
  return false;
}

}  // namespace

std::size_t matmul_workspace(const Matrix& out, const Matrix& a, const Matrix& b) {
  if (out.transposed) return matmul_workspace(out.transpose(), b.transpose(), a.transpose());
  check_shapes(out, a, b);
  if (empty(out, a)) return 0;
  std::size_t bytes = 0;
  const auto measure = [&](const auto& product) { bytes = product.workspace_bytes(); };
  if (in_pieces(out, a, b, true, measure)) return bytes;
  in_pieces(out, a, b, false, measure);
  if (RowsProduct::suits(out, a, b)) return std::max(bytes, RowsProduct(out, a, b).workspace_bytes());
  // A sum into `out`, or a bias, may need more than the product alone.
  ProductCache& cache = product_cache();
  for (const Addend addend : {Addend::none, Addend::out, Addend::bias})
    bytes = std::max(bytes, cache.find(out, a, b, addend).scratchpad_bytes());
  return bytes;
}

void matmul(const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate, void* workspace) {
  if (out.transposed) return matmul(out.transpose(), b.transpose(), a.transpose(), accumulate, workspace);
  check_shapes(out, a, b);
  if (empty(out, a)) {  // oneDNN divides by the dimensions
    if (!accumulate) fill_zero(out);
    return;
  }
  if (in_pieces(out, a, b, accumulate, [&](const auto& product) { product.run(accumulate, workspace); })) return;
  if (RowsProduct::suits(out, a, b)) return RowsProduct(out, a, b).run(sum_into(accumulate), workspace);
  ProductCache& cache = product_cache();
  cache.find(out, a, b, sum_into(accumulate)).execute(cache.stream(), out.data, a.data, b.data, workspace);
}

void matmul_with_bias(const Matrix& out, const Matrix& a, const Matrix& b, const Tensor& bias, void* workspace) {
  // Products that accumulate are never left out of those in pieces, and those of other dtypes have no bias in the library.
  if (out.transposed || empty(out, a) || out.dtype != a.dtype || in_pieces(out, a, b, true, [](const auto&) {})) {
    matmul(out, a, b, false, workspace);
    return bias_add(Tensor(out.data, out.dtype, {out.rows, out.columns}), out.stride, bias);
  }
  check_shapes(out, a, b);
  BALEEN_CHECK(bias.elements() == out.columns && bias.dtype() == out.dtype, bias.elements(), out.columns, dtype_name(bias.dtype()));
  if (RowsProduct::suits(out, a, b)) return RowsProduct(out, a, b).run(Addend::bias, workspace, bias.data());
  ProductCache& cache = product_cache();
  cache.find(out, a, b, Addend::bias).execute(cache.stream(), out.data, a.data, b.data, workspace, bias.data());
}

}  // namespace cpu
}  // namespace baleen::ops
