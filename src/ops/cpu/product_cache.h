// oneDNN's matmul primitives. Creating a primitive generates machine code and takes milliseconds, running one takes microseconds: each
// shape is created once and kept.
#pragma once

#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "base/hash.h"
#include "ops/matmul.h"

namespace baleen::ops::cpu {

bool processor_has(dnnl::cpu_isa isa);

// What the product is added to: nothing, what lies in `out`, or a row.
enum class Addend { none, out, bias };
inline Addend sum_into(bool accumulate) {
  return accumulate ? Addend::out : Addend::none;
}

// One shape's primitive with the memory objects it reads and writes, whose addresses are set at each call.
class Product {
 public:
  // b: how it is laid out.
  Product(const dnnl::engine& engine, const Matrix& out, const Matrix& a, const dnnl::memory::desc& b, Addend addend);
  std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }
  void execute(const dnnl::stream& stream, void* out, void* a, void* b, void* scratchpad, void* bias = nullptr);

 private:
  dnnl::matmul primitive_;
  dnnl::memory a_, b_, out_, scratchpad_, bias_;
  std::size_t scratchpad_bytes_ = 0;
};

// The way to the layout of b in which the library multiplies it soonest.
class Packing {
 public:
  // For products of `rows` rows whose result is an `out`.
  Packing(const dnnl::engine& engine, std::int64_t rows, const Matrix& b, DType out);
  std::int64_t rows() const { return rows_; }
  const dnnl::memory::desc& packed() const { return packed_; }
  std::size_t bytes() const;                                   // of a packed b, to whole cache lines
  void run(const dnnl::stream& stream, void* to, void* from);  // from: as b of the constructor lies

 private:
  std::int64_t rows_;
  Matrix b_;
  dnnl::memory::desc packed_;
  bool pairs_;  // packed_ is what pack_pairs makes
  dnnl::memory from_, to_;
  dnnl::reorder reorder_;
};

class ProductCache {
 public:
  // With b as it lies, or as `packing` leaves it.
  Product& find(const Matrix& out, const Matrix& a, const Matrix& b, Addend addend, const Packing* packing = nullptr);
  Packing& packing(std::int64_t rows, const Matrix& b, DType out);
  const dnnl::stream& stream() const { return stream_; }

 private:
  // Everything a primitive is specialised for. The threads are part of it: some of oneDNN's implementations split the work when created.
  using Key = std::array<std::int64_t, 13>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const { return hash_bytes(key.data(), sizeof(key)); }
  };
  static Key key_of(const Matrix& out, const Matrix& a, const Matrix& b, Addend addend, const Packing* packing);

  static constexpr std::size_t most_products = 1024;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::unordered_map<Key, Product, KeyHash> products_;
  std::unordered_map<Key, Packing, KeyHash> packings_;
};

// One cache a thread: nobody passes a context down here, and a thread's products need no lock. Not a global: what it holds can only change
// how soon a result is there, never the result.
ProductCache& product_cache();

}  // namespace baleen::ops::cpu
