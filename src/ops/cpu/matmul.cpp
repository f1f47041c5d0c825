// Matrix products through oneDNN's matmul primitive. Creating a primitive generates machine code and takes milliseconds, running one takes
// microseconds: each shape is created once and kept.
#include "ops/matmul.h"

#include <omp.h>

#include <array>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "base/hash.h"

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

using dnnl::memory;

memory::data_type onednn_type(DType dtype) {
  if (dtype == DType::f32) return memory::data_type::f32;
  if (dtype == DType::bf16) return memory::data_type::bf16;
  throw Error(ExitCode::check_failed, "a matrix product of " + std::string(dtype_name(dtype)) + " does not exist", "ops::matmul",
              "this is a bug in baleen; please report it with the command and config");
}

// The rows and columns of a matrix as the product sees it.
std::int64_t rows_of(const Matrix& m) { return m.transposed ? m.columns : m.rows; }
std::int64_t columns_of(const Matrix& m) { return m.transposed ? m.rows : m.columns; }

memory::desc describe(const Matrix& m) {
  // The stride of a single row is never used: the plain one keeps oneDNN on its fast path, and the cache small.
  const std::int64_t stride = m.rows == 1 ? m.columns : m.stride;
  return m.transposed ? memory::desc({m.columns, m.rows}, onednn_type(m.dtype), memory::dims{1, stride})
                      : memory::desc({m.rows, m.columns}, onednn_type(m.dtype), memory::dims{stride, 1});
}

// One shape's primitive with the memory objects it reads and writes, whose addresses are set at each call.
class Product {
 public:
  Product(const dnnl::engine& engine, const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(describe(a), describe(b), describe(out)), attributes, engine);
    primitive_ = dnnl::matmul(description);
    a_ = memory(description.src_desc(), engine, DNNL_MEMORY_NONE);
    b_ = memory(description.weights_desc(), engine, DNNL_MEMORY_NONE);
    out_ = memory(description.dst_desc(), engine, DNNL_MEMORY_NONE);
    scratchpad_ = memory(description.scratchpad_desc(), engine, DNNL_MEMORY_NONE);
    scratchpad_bytes_ = description.scratchpad_desc().get_size();
  }

  std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }

  // The C interface takes the arguments as an array; the C++ one would build a map and a vector each time.
  void execute(const dnnl::stream& stream, void* out, void* a, void* b, void* scratchpad) {
    a_.set_data_handle(a);
    b_.set_data_handle(b);
    out_.set_data_handle(out);
    scratchpad_.set_data_handle(scratchpad);
    const std::array<dnnl_exec_arg_t, 4> arguments{{{DNNL_ARG_SRC, a_.get()},
                                                    {DNNL_ARG_WEIGHTS, b_.get()},
                                                    {DNNL_ARG_DST, out_.get()},
                                                    {DNNL_ARG_SCRATCHPAD, scratchpad_.get()}}};
    dnnl::error::wrap_c_api(dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(arguments.size()), arguments.data()),
                            "the matrix product failed");
  }

 private:
  dnnl::matmul primitive_;
  memory a_, b_, out_, scratchpad_;
  std::size_t scratchpad_bytes_ = 0;
};

// Everything a primitive is specialised for. The threads are part of it: some of oneDNN's implementations split the work when created.
using ProductKey = std::array<std::int64_t, 12>;

ProductKey key_of(const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate) {
  const auto stride = [](const Matrix& m) { return m.rows == 1 ? m.columns : m.stride; };
  return {rows_of(out), columns_of(out), columns_of(a), stride(a), stride(b), stride(out), a.transposed,
          b.transposed, static_cast<std::int64_t>(a.dtype), static_cast<std::int64_t>(out.dtype), accumulate, omp_get_max_threads()};
}

struct ProductKeyHash {
  std::size_t operator()(const ProductKey& key) const { return hash_bytes(key.data(), sizeof(key)); }
};

class ProductCache {
 public:
  Product& find(const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate) {
    const ProductKey key = key_of(out, a, b, accumulate);
    if (const auto found = products_.find(key); found != products_.end()) return found->second;
    if (products_.size() >= most_products) products_.clear();  // generation may meet a new length at each call
    return products_.try_emplace(key, engine_, out, a, b, accumulate).first->second;
  }
  const dnnl::stream& stream() const { return stream_; }

 private:
  static constexpr std::size_t most_products = 1024;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::unordered_map<ProductKey, Product, ProductKeyHash> products_;
};

// One cache a thread: nobody passes a context down here, and a thread's products need no lock. Not a global: what it holds can only change
// how soon a result is there, never the result.
ProductCache& product_cache() {
  thread_local ProductCache cache;
  return cache;
}

void check_shapes(const Matrix& out, const Matrix& a, const Matrix& b) {
  BALEEN_CHECK(rows_of(a) == rows_of(out) && columns_of(a) == rows_of(b) && columns_of(b) == columns_of(out), rows_of(out), columns_of(out),
               rows_of(a), columns_of(a), rows_of(b), columns_of(b));
  for (const Matrix* m : {&out, &a, &b}) BALEEN_CHECK(m->rows <= 1 || m->stride >= m->columns, m->rows, m->columns, m->stride);
  if (a.dtype != DType::f32 || b.dtype != DType::f32 || out.dtype != DType::f32)
    throw Error(ExitCode::bad_config, "matrix products have no " + std::string(dtype_name(a.dtype)) + " version on the CPU", "training.dtype",
                "use dtype = \"fp32\" with device = \"cpu\"");
}

// Row-major matrices can be written transposed only by writing (op(a) · op(b))ᵀ = op(b)ᵀ · op(a)ᵀ.
bool empty(const Matrix& out, const Matrix& a) { return rows_of(out) == 0 || columns_of(out) == 0 || columns_of(a) == 0; }

void fill_zero(const Matrix& m) {
  for (std::int64_t row = 0; row < m.rows; ++row)
    std::memset(static_cast<std::byte*>(m.data) + static_cast<std::size_t>(row * m.stride) * dtype_bytes(m.dtype), 0,
                static_cast<std::size_t>(m.columns) * dtype_bytes(m.dtype));
}

}  // namespace

std::size_t matmul_workspace(const Matrix& out, const Matrix& a, const Matrix& b) {
  if (out.transposed) return matmul_workspace(out.transpose(), b.transpose(), a.transpose());
  check_shapes(out, a, b);
  if (empty(out, a)) return 0;
  // The sum into `out` may need more than the product alone.
  ProductCache& cache = product_cache();
  const std::size_t plain = cache.find(out, a, b, false).scratchpad_bytes();
  return std::max(plain, cache.find(out, a, b, true).scratchpad_bytes());
}

void matmul(const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate, void* workspace) {
  if (out.transposed) return matmul(out.transpose(), b.transpose(), a.transpose(), accumulate, workspace);
  check_shapes(out, a, b);
  if (empty(out, a)) {  // oneDNN divides by the dimensions
    if (!accumulate) fill_zero(out);
    return;
  }
  ProductCache& cache = product_cache();
  cache.find(out, a, b, accumulate).execute(cache.stream(), out.data, a.data, b.data, workspace);
}

}  // namespace cpu
}  // namespace baleen::ops
