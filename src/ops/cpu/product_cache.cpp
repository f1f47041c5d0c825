#include "ops/cpu/product_cache.h"

#include <omp.h>

#include "ops/cpu/matrix_tiles.h"
#include "ops/cpu/pack_pairs.h"
#include "ops/cpu/parallel.h"

namespace baleen::ops::cpu {
namespace {

using dnnl::memory;

memory::data_type onednn_type(DType dtype) {
  if (dtype == DType::f32) return memory::data_type::f32;
  if (dtype == DType::bf16) return memory::data_type::bf16;
  throw Error(ExitCode::check_failed, "a matrix product of " + std::string(dtype_name(dtype)) + " does not exist", "ops::matmul",
              "this is a bug in baleen; please report it with the command and config");
}

memory::desc describe(const Matrix& m) {
  // The stride of a single row is never used: the plain one keeps oneDNN on its fast path, and the cache small.
  const std::int64_t stride = m.rows == 1 ? m.columns : m.stride;
  return m.transposed ? memory::desc({m.columns, m.rows}, onednn_type(m.dtype), memory::dims{1, stride})
                      : memory::desc({m.rows, m.columns}, onednn_type(m.dtype), memory::dims{stride, 1});
}

// The stride of a single row is never used.
std::int64_t stride_of(const Matrix& m) {
  return m.rows == 1 ? m.columns : m.stride;
}

}  // namespace

bool processor_has(dnnl::cpu_isa isa) {
  const auto here = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), needed = static_cast<unsigned>(isa);
  return (here & needed) == needed;
}

Product::Product(const dnnl::engine& engine, const Matrix& out, const Matrix& a, const memory::desc& b, Addend addend) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (addend == Addend::out) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const bool biased = addend == Addend::bias;
  const memory::desc bias({1, columns_of(out)}, onednn_type(out.dtype), memory::format_tag::ab);
  const dnnl::matmul::primitive_desc description(
      biased ? dnnl::matmul::desc(describe(a), b, bias, describe(out)) : dnnl::matmul::desc(describe(a), b, describe(out)), attributes,
      engine);
  if (biased) bias_ = memory(bias, engine, DNNL_MEMORY_NONE);
  primitive_ = dnnl::matmul(description);
  a_ = memory(description.src_desc(), engine, DNNL_MEMORY_NONE);
  b_ = memory(description.weights_desc(), engine, DNNL_MEMORY_NONE);
  out_ = memory(description.dst_desc(), engine, DNNL_MEMORY_NONE);
  scratchpad_ = memory(description.scratchpad_desc(), engine, DNNL_MEMORY_NONE);
  scratchpad_bytes_ = description.scratchpad_desc().get_size();
}

// The C interface takes the arguments as an array; the C++ one would build a map and a vector each time.
void Product::execute(const dnnl::stream& stream, void* out, void* a, void* b, void* scratchpad, void* bias) {
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

Packing::Packing(const dnnl::engine& engine, std::int64_t rows, const Matrix& b, DType out) : rows_(rows), b_(b) {
  const memory::desc from({rows, rows_of(b)}, onednn_type(b.dtype), memory::format_tag::ab),
      any({rows_of(b), columns_of(b)}, onednn_type(b.dtype), memory::format_tag::any),
      to({rows, columns_of(b)}, onednn_type(out), memory::format_tag::ab);
  {
    const OneThread alone;  // all must find the same layout
    packed_ = dnnl::matmul::primitive_desc(dnnl::matmul::desc(from, any, to), engine).weights_desc();
  }
  pairs_ =
      b.dtype == DType::bf16 && packed_ == memory::desc({rows_of(b), columns_of(b)}, onednn_type(b.dtype), memory::format_tag::BA16a64b2a);
  from_ = memory(describe(b), engine, DNNL_MEMORY_NONE), to_ = memory(packed_, engine, DNNL_MEMORY_NONE);
  reorder_ = dnnl::reorder(from_, to_);
}

std::size_t Packing::bytes() const {
  return aligned_bytes(static_cast<std::int64_t>(packed_.get_size()), DType::u8);
}

void Packing::run(const dnnl::stream& stream, void* to, void* from) {
  if (pairs_) {  // two to three times as fast as the library's own conversion
    b_.data = from;
    return pack_pairs(to, b_);
  }
  from_.set_data_handle(from);
  to_.set_data_handle(to);
  const std::array<dnnl_exec_arg_t, 2> arguments{{{DNNL_ARG_FROM, from_.get()}, {DNNL_ARG_TO, to_.get()}}};
  dnnl::error::wrap_c_api(dnnl_primitive_execute(reorder_.get(), stream.get(), 2, arguments.data()), "packing a matrix failed");
}

ProductCache::Key ProductCache::key_of(const Matrix& out, const Matrix& a, const Matrix& b, Addend addend, const Packing* packing) {
  return {rows_of(out),
          columns_of(out),
          columns_of(a),
          stride_of(a),
          packing != nullptr ? 0 : stride_of(b),
          stride_of(out),
          a.transposed,
          b.transposed,
          static_cast<std::int64_t>(a.dtype),
          static_cast<std::int64_t>(out.dtype),
          static_cast<std::int64_t>(addend),
          packing != nullptr ? packing->rows() : 0,
          omp_get_max_threads()};
}

Product& ProductCache::find(const Matrix& out, const Matrix& a, const Matrix& b, Addend addend, const Packing* packing) {
  const Key key = key_of(out, a, b, addend, packing);
  if (const auto found = products_.find(key); found != products_.end()) return found->second;
  if (products_.size() >= most_products) products_.clear();  // generation may meet a new length at each call
  return products_.try_emplace(key, engine_, out, a, packing != nullptr ? packing->packed() : describe(b), addend).first->second;
}

Packing& ProductCache::packing(std::int64_t rows, const Matrix& b, DType out) {
  const Key key{rows,
                rows_of(b),
                columns_of(b),
                stride_of(b),
                b.transposed,
                static_cast<std::int64_t>(b.dtype),
                static_cast<std::int64_t>(out),
                omp_get_max_threads()};
  if (const auto found = packings_.find(key); found != packings_.end()) return found->second;
  if (packings_.size() >= most_products) packings_.clear();
  return packings_.try_emplace(key, engine_, rows, b, out).first->second;
}

ProductCache& product_cache() {
  thread_local ProductCache cache;
  return cache;
}

}  // namespace baleen::ops::cpu
