// Matrix products through oneDNN's matmul primitive. Creating a primitive generates machine code and takes milliseconds, running one takes
// microseconds: each shape is created once and kept.
//
// oneDNN multiplies bf16 only with AVX-512, and fast only where the processor has instructions for it. Elsewhere the product is cut into
// tiles that are converted to fp32, multiplied and summed in fp32, and rounded once.
#include "ops/matmul.h"

#include <omp.h>

#include <array>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "base/hash.h"
#include "ops/cpu/convert_rows.h"

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
std::int64_t rows_of(const Matrix& m) {
  return m.transposed ? m.columns : m.rows;
}
std::int64_t columns_of(const Matrix& m) {
  return m.transposed ? m.rows : m.columns;
}

memory::desc describe(const Matrix& m) {
  // The stride of a single row is never used: the plain one keeps oneDNN on its fast path, and the cache small.
  const std::int64_t stride = m.rows == 1 ? m.columns : m.stride;
  return m.transposed ? memory::desc({m.columns, m.rows}, onednn_type(m.dtype), memory::dims{1, stride})
                      : memory::desc({m.rows, m.columns}, onednn_type(m.dtype), memory::dims{stride, 1});
}

// What the product is added to: nothing, what lies in `out`, or a row.
enum class Addend { none, out, bias };
Addend sum_into(bool accumulate) {
  return accumulate ? Addend::out : Addend::none;
}

// One shape's primitive with the memory objects it reads and writes, whose addresses are set at each call.
class Product {
 public:
  Product(const dnnl::engine& engine, const Matrix& out, const Matrix& a, const Matrix& b, Addend addend) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (addend == Addend::out) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const bool biased = addend == Addend::bias;
    const memory::desc bias({1, columns_of(out)}, onednn_type(out.dtype), memory::format_tag::ab);
    const dnnl::matmul::primitive_desc description(biased ? dnnl::matmul::desc(describe(a), describe(b), bias, describe(out))
                                                          : dnnl::matmul::desc(describe(a), describe(b), describe(out)),
                                                   attributes, engine);
    if (biased) bias_ = memory(bias, engine, DNNL_MEMORY_NONE);
    primitive_ = dnnl::matmul(description);
    a_ = memory(description.src_desc(), engine, DNNL_MEMORY_NONE);
    b_ = memory(description.weights_desc(), engine, DNNL_MEMORY_NONE);
    out_ = memory(description.dst_desc(), engine, DNNL_MEMORY_NONE);
    scratchpad_ = memory(description.scratchpad_desc(), engine, DNNL_MEMORY_NONE);
    scratchpad_bytes_ = description.scratchpad_desc().get_size();
  }

  std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }

  // The C interface takes the arguments as an array; the C++ one would build a map and a vector each time.
  void execute(const dnnl::stream& stream, void* out, void* a, void* b, void* scratchpad, void* bias = nullptr) {
    a_.set_data_handle(a);
    b_.set_data_handle(b);
    out_.set_data_handle(out);
    scratchpad_.set_data_handle(scratchpad);
    std::array<dnnl_exec_arg_t, 5> arguments{
        {{DNNL_ARG_SRC, a_.get()}, {DNNL_ARG_WEIGHTS, b_.get()}, {DNNL_ARG_DST, out_.get()}, {DNNL_ARG_SCRATCHPAD, scratchpad_.get()}, {}}};
    int count = 4;
    if (bias_) {
      bias_.set_data_handle(bias);
      arguments[static_cast<std::size_t>(count++)] = {DNNL_ARG_BIAS, bias_.get()};
    }
    dnnl::error::wrap_c_api(dnnl_primitive_execute(primitive_.get(), stream.get(), count, arguments.data()), "the matrix product failed");
  }

 private:
  dnnl::matmul primitive_;
  memory a_, b_, out_, scratchpad_, bias_;
  std::size_t scratchpad_bytes_ = 0;
};

// Everything a primitive is specialised for. The threads are part of it: some of oneDNN's implementations split the work when created.
using ProductKey = std::array<std::int64_t, 12>;

ProductKey key_of(const Matrix& out, const Matrix& a, const Matrix& b, Addend addend) {
  const auto stride = [](const Matrix& m) { return m.rows == 1 ? m.columns : m.stride; };
  return {rows_of(out),
          columns_of(out),
          columns_of(a),
          stride(a),
          stride(b),
          stride(out),
          a.transposed,
          b.transposed,
          static_cast<std::int64_t>(a.dtype),
          static_cast<std::int64_t>(out.dtype),
          static_cast<std::int64_t>(addend),
          omp_get_max_threads()};
}

struct ProductKeyHash {
  std::size_t operator()(const ProductKey& key) const { return hash_bytes(key.data(), sizeof(key)); }
};

class ProductCache {
 public:
  Product& find(const Matrix& out, const Matrix& a, const Matrix& b, Addend addend) {
    const ProductKey key = key_of(out, a, b, addend);
    if (const auto found = products_.find(key); found != products_.end()) return found->second;
    if (products_.size() >= most_products) products_.clear();  // generation may meet a new length at each call
    return products_.try_emplace(key, engine_, out, a, b, addend).first->second;
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

bool processor_has(dnnl::cpu_isa isa) {
  const auto here = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), needed = static_cast<unsigned>(isa);
  return (here & needed) == needed;
}
bool multiplies_bf16() {
  return processor_has(dnnl::cpu_isa::avx512_core_bf16);
}

// Rows [row, row + rows) and columns [column, column + columns) of a matrix as the product sees it.
Matrix tile_of(const Matrix& m, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
  Matrix tile = m;
  if (m.transposed) std::swap(row, column), std::swap(rows, columns);
  tile.rows = rows, tile.columns = columns;
  if (m.data != nullptr)
    tile.data = static_cast<std::byte*>(m.data) + static_cast<std::size_t>(row * m.stride + column) * dtype_bytes(m.dtype);
  return tile;
}

// [0, extent) cut into equal tiles, of which the last may be shorter.
struct Cut {
  std::int64_t extent, tile;
  Cut(std::int64_t extent_, std::int64_t most) : extent(extent_) {
    const std::int64_t tiles = (extent + most - 1) / most;
    tile = std::min(extent, ((extent + tiles - 1) / tiles + 15) / 16 * 16);
  }
  std::int64_t last() const { return extent - (extent - 1) / tile * tile; }
  std::int64_t size(std::int64_t begin) const { return std::min(tile, extent - begin); }
};

// A product of bf16 matrices by fp32 tiles. The tiles are large enough that converting them costs little beside multiplying them, and small
// enough to stay in the cache in between.
class TiledProduct {
 public:
  TiledProduct(const Matrix& out, const Matrix& a, const Matrix& b)
      : out_(out), a_(a), b_(b), rows_(rows_of(out), most_rows), columns_(columns_of(out), most_rows), depth_(columns_of(a), most_depth) {}

  std::size_t workspace_bytes() const {
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

  void run(bool accumulate, void* workspace) const {
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

 private:
  static constexpr std::int64_t most_rows = 512, most_depth = 1024;
  static constexpr std::int64_t padding = 16;  // keeps rows of a power of two apart in the cache

  static std::size_t tile_bytes(std::int64_t rows, std::int64_t columns) {
    const std::int64_t longest = std::max(rows, columns);  // whichever way round it is stored
    const std::size_t bytes = static_cast<std::size_t>(rows * columns + longest * padding) * sizeof(float);
    return (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
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

bool in_tiles(const Matrix& a) {
  return a.dtype == DType::bf16 && !multiplies_bf16();
}

// A product that sums over tens of thousands of columns, as the head's does for the gradient of its input: oneDNN's kernels
// for AVX-512 and AMX walk through all of b for every few rows of a. Here b's rows are taken in pieces that stay in the cache, and the sum
// forms in fp32. A piece of a is copied, because oneDNN is fast only where rows follow each other without a gap.
class DeepProduct {
 public:
  static bool suits(const Matrix& out, const Matrix& a) {
    return !a.transposed && columns_of(a) >= 4 * depth && columns_of(out) <= depth && processor_has(dnnl::cpu_isa::avx512_core);
  }
  DeepProduct(const Matrix& out, const Matrix& a, const Matrix& b) : out_(out), a_(a), b_(b), depths_(columns_of(a), depth) {}

  std::size_t workspace_bytes() const {
    std::size_t scratchpad = 0;
    for (const std::int64_t size : {depths_.tile, depths_.last()})
      for (const bool accumulate : {false, true})
        scratchpad =
            std::max(scratchpad,
                     product_cache().find(sum(nullptr), piece(nullptr, size), b_piece(0, size), sum_into(accumulate)).scratchpad_bytes());
    return piece_bytes() + sum_bytes() + scratchpad;
  }

  void run(bool accumulate, void* workspace) const {
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

 private:
  static constexpr std::int64_t depth = 2048;
  static std::size_t aligned(std::size_t bytes) { return (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment; }
  std::size_t piece_bytes() const { return aligned(static_cast<std::size_t>(a_.rows * depths_.tile) * dtype_bytes(a_.dtype)); }
  std::size_t sum_bytes() const {
    return out_.dtype == DType::f32 ? 0 : aligned(static_cast<std::size_t>(out_.rows * out_.columns) * sizeof(float));
  }
  Matrix piece(void* space, std::int64_t size) const { return Matrix(space, a_.dtype, a_.rows, size, size); }
  Matrix b_piece(std::int64_t begin, std::int64_t size) const { return tile_of(b_, begin, size, 0, columns_of(b_)); }
  // Where the sum forms: in place where that is fp32.
  Matrix sum(void* space) const {
    return out_.dtype == DType::f32 ? out_ : Matrix(space, DType::f32, out_.rows, out_.columns, out_.columns);
  }

  Matrix out_, a_, b_;
  Cut depths_;
};

}  // namespace

std::size_t matmul_workspace(const Matrix& out, const Matrix& a, const Matrix& b) {
  if (out.transposed) return matmul_workspace(out.transpose(), b.transpose(), a.transpose());
  check_shapes(out, a, b);
  if (empty(out, a)) return 0;
  if (in_tiles(a)) return TiledProduct(out, a, b).workspace_bytes();
  if (DeepProduct::suits(out, a)) return DeepProduct(out, a, b).workspace_bytes();
  // A sum into `out`, or a bias, may need more than the product alone.
  ProductCache& cache = product_cache();
  std::size_t bytes = 0;
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
  if (in_tiles(a)) return TiledProduct(out, a, b).run(accumulate, workspace);
  if (DeepProduct::suits(out, a)) return DeepProduct(out, a, b).run(accumulate, workspace);
  ProductCache& cache = product_cache();
  cache.find(out, a, b, sum_into(accumulate)).execute(cache.stream(), out.data, a.data, b.data, workspace);
}

void matmul_with_bias(const Matrix& out, const Matrix& a, const Matrix& b, const Tensor& bias, void* workspace) {
  if (out.transposed || empty(out, a) || in_tiles(a) || DeepProduct::suits(out, a) || out.dtype != a.dtype) {
    matmul(out, a, b, false, workspace);
    return bias_add(Tensor(out.data, out.dtype, {out.rows, out.columns}), out.stride, bias);
  }
  check_shapes(out, a, b);
  BALEEN_CHECK(bias.elements() == out.columns && bias.dtype() == out.dtype, bias.elements(), out.columns, dtype_name(bias.dtype()));
  ProductCache& cache = product_cache();
  cache.find(out, a, b, Addend::bias).execute(cache.stream(), out.data, a.data, b.data, workspace, bias.data());
}

}  // namespace cpu
}  // namespace baleen::ops
