// Matrix products through the vendor's library. Asking which method to use takes longer than starting a small product: each shape is asked
// for once and kept.
#include "ops/matmul.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <unordered_map>

#include "base/hash.h"
#include "device/gpu_api.h"
#include "ops/gpu/launch.h"

namespace baleen::ops::gpu {
namespace {

void blas_check(gpublasStatus_t status, const char* call) {
  if (status != gpublas_success)
    throw Error(ExitCode::rank_failed, "the GPU's matrix library failed with status " + std::to_string(static_cast<int>(status)), call,
                "run again; if it stays, report it with the command and config");
}

std::int64_t rows_of(const Matrix& m) {
  return m.transposed ? m.columns : m.rows;
}
std::int64_t columns_of(const Matrix& m) {
  return m.transposed ? m.rows : m.columns;
}
// The stride of a single row is never used; the library wants one that is not too small.
std::int64_t stride_of(const Matrix& m) {
  return m.rows == 1 ? m.columns : m.stride;
}

// Bytes that an address is surely a multiple of, as the library asks: powers of two up to 256.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return address == 0 ? 256u : static_cast<std::uint32_t>(std::min<std::uintptr_t>(256, address & (~address + 1)));
}

// A description of the library that is destroyed with its owner.
template <class Handle>
class Owned {
 public:
  using Destroy = gpublasStatus_t (*)(Handle);
  explicit Owned(Destroy destroy) : destroy_(destroy) {}
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle* out() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
  Destroy destroy_;
};

// One shape's descriptions and method. The library thinks in columns: it computes outᵀ = bᵀ · aᵀ, and a row-major matrix is its transpose.
class Product {
 public:
  Product(gpublasLtHandle_t handle, const Matrix& out, const Matrix& a, const Matrix& b) {
    const GpuBlasFunctions& blas = gpu_blas();
    blas_check(blas.desc_create(description_.out(), gpublas_compute_f32, gpublas_f32), "describing a product");
    const gpublasOperation_t b_operation = b.transposed ? gpublas_transpose : gpublas_normal;
    const gpublasOperation_t a_operation = a.transposed ? gpublas_transpose : gpublas_normal;
    blas_check(blas.desc_set(description_.get(), gpublas_desc_transa, &b_operation, sizeof b_operation), "describing a product");
    blas_check(blas.desc_set(description_.get(), gpublas_desc_transb, &a_operation, sizeof a_operation), "describing a product");
    describe(blas, b_, b);
    describe(blas, a_, a);
    describe(blas, out_, out);

    Owned<gpublasLtMatmulPreference_t> preference(blas.preference_destroy);
    blas_check(blas.preference_create(preference.out()), "choosing a method");
    const auto prefer = [&](auto attribute, auto value) {
      blas_check(blas.preference_set(preference.get(), attribute, &value, sizeof value), "choosing a method");
    };
    prefer(gpublas_pref_workspace, static_cast<std::uint64_t>(matmul_workspace));
    prefer(gpublas_pref_align_a, alignment_of(b.data));
    prefer(gpublas_pref_align_b, alignment_of(a.data));
    prefer(gpublas_pref_align_c, alignment_of(out.data));
    prefer(gpublas_pref_align_d, alignment_of(out.data));
    int found = 0;
    blas_check(
        blas.heuristic(handle, description_.get(), b_.get(), a_.get(), out_.get(), out_.get(), preference.get(), 1, &method_, &found),
        "choosing a method");
    BALEEN_CHECK(found == 1, "no method for the product", rows_of(out), columns_of(out), columns_of(a));
  }

  void execute(gpublasLtHandle_t handle, gpuStream_t stream, void* out, const void* a, const void* b, bool accumulate,
               void* workspace) const {
    const float one = 1.0f, before = accumulate ? 1.0f : 0.0f;
    blas_check(gpu_blas().matmul(handle, description_.get(), &one, b, b_.get(), a, a_.get(), &before, out, out_.get(), out, out_.get(),
                                 &method_.algo, workspace, matmul_workspace, stream),
               "a matrix product");
  }

 private:
  static void describe(const GpuBlasFunctions& blas, Owned<gpublasLtMatrixLayout_t>& layout, const Matrix& m) {
    blas_check(blas.layout_create(layout.out(), gpublas_f32, static_cast<std::uint64_t>(m.columns), static_cast<std::uint64_t>(m.rows),
                                  stride_of(m)),
               "describing a matrix");
  }

  Owned<gpublasLtMatmulDesc_t> description_{gpu_blas().desc_destroy};
  Owned<gpublasLtMatrixLayout_t> a_{gpu_blas().layout_destroy}, b_{gpu_blas().layout_destroy}, out_{gpu_blas().layout_destroy};
  gpublasLtMatmulHeuristicResult_t method_{};
};

// Everything that the choice of a method depends on.
using ProductKey = std::array<std::int64_t, 11>;

ProductKey key_of(const Matrix& out, const Matrix& a, const Matrix& b) {
  return {rows_of(out), columns_of(out), columns_of(a),        stride_of(a),         stride_of(b),          stride_of(out),
          a.transposed, b.transposed,    alignment_of(a.data), alignment_of(b.data), alignment_of(out.data)};
}

struct ProductKeyHash {
  std::size_t operator()(const ProductKey& key) const { return hash_bytes(key.data(), sizeof(key)); }
};

class ProductCache {
 public:
  ProductCache() { blas_check(gpu_blas().create(&handle_), "starting the matrix library"); }
  ~ProductCache() {
    products_.clear();
    gpu_blas().destroy(handle_);
  }
  ProductCache(const ProductCache&) = delete;
  ProductCache& operator=(const ProductCache&) = delete;

  const Product& find(const Matrix& out, const Matrix& a, const Matrix& b) {
    const ProductKey key = key_of(out, a, b);
    if (const auto found = products_.find(key); found != products_.end()) return found->second;
    if (products_.size() >= most_products) products_.clear();  // generation may meet a new length at each call
    return products_.try_emplace(key, handle_, out, a, b).first->second;
  }
  gpublasLtHandle_t handle() const { return handle_; }

 private:
  static constexpr std::size_t most_products = 1024;
  gpublasLtHandle_t handle_ = nullptr;
  std::unordered_map<ProductKey, Product, ProductKeyHash> products_;
};

// One cache a thread, as on the CPU: a rank has one device and one thread that enqueues.
ProductCache& product_cache() {
  thread_local ProductCache cache;
  return cache;
}

void check_shapes(const Matrix& out, const Matrix& a, const Matrix& b) {
  BALEEN_CHECK(rows_of(a) == rows_of(out) && columns_of(a) == rows_of(b) && columns_of(b) == columns_of(out), rows_of(out), columns_of(out),
               rows_of(a), columns_of(a), rows_of(b), columns_of(b));
  for (const Matrix* m : {&out, &a, &b}) {
    BALEEN_CHECK(m->rows <= 1 || m->stride >= m->columns, m->rows, m->columns, m->stride);
    if (m->dtype != DType::f32) refuse_dtype("the matrix product", m->dtype);
  }
}

}  // namespace

void matmul(Stream& stream, const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate, void* workspace) {
  if (out.transposed) return matmul(stream, out.transpose(), b.transpose(), a.transpose(), accumulate, workspace);
  check_shapes(out, a, b);
  if (out.rows == 0 || out.columns == 0) return;
  const gpuStream_t native = native_stream(stream);
  if (columns_of(a) == 0) {  // the sum of nothing
    const std::size_t row = dtype_bytes(out.dtype);
    if (!accumulate)
      gpu_check(gpuMemset2DAsync(out.data, static_cast<std::size_t>(stride_of(out)) * row, 0, static_cast<std::size_t>(out.columns) * row,
                                 static_cast<std::size_t>(out.rows), native),
                "filling with zeros");
    return;
  }
  ProductCache& cache = product_cache();
  cache.find(out, a, b).execute(cache.handle(), native, out.data, a.data, b.data, accumulate, workspace);
}

}  // namespace baleen::ops::gpu
