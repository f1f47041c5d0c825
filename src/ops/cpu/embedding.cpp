#include "ops/embedding.h"

#include <cstring>

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/embedding.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// Columns [begin, end) of d_table's rows += those of d_out, one token after the other.
void AddRows(const Tensor& d_table, const Tensor& d_out, const std::int32_t* ids, std::int64_t tokens, std::int64_t begin,
             std::int64_t end) {
  const std::int64_t columns = d_table.size(1);
  ForStorage(d_out.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    for (std::int64_t token = 0; token < tokens; ++token) {
      if (ids[token] == absent_id) continue;
      float* to = d_table.as<float>() + ids[token] * columns + begin;
      const T* from = d_out.as<T>() + token * columns + begin;
      ForVectors(static_cast<std::size_t>(end - begin), [&](std::size_t i, auto width) HWY_ATTR {
        StoreVec(hn::Add(LoadVec(to + i, width), LoadVec(from + i, width)), to + i, width);
      });
    }
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(AddRows);

void embedding_forward(const Tensor& out, const Tensor& ids, const Tensor& table) {
  const std::int64_t tokens = ids.elements();
  BALEEN_CHECK(table.dims() == 2 && out.elements() == tokens * table.size(1) && out.dtype() == table.dtype(), out.elements(), tokens);
  check_indices(ids, table.size(0), absent_id);
  const std::int32_t* id = ids.as<std::int32_t>();
  const std::size_t row_bytes = static_cast<std::size_t>(table.size(1)) * dtype_bytes(table.dtype());
  parallel_ranges(tokens, 1, worthwhile_rows(table.size(1)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      auto* const row = static_cast<std::byte*>(out.data()) + static_cast<std::size_t>(token) * row_bytes;
      if (id[token] == absent_id)
        std::memset(row, 0, row_bytes);
      else
        std::memcpy(row, static_cast<const std::byte*>(table.data()) + static_cast<std::size_t>(id[token]) * row_bytes, row_bytes);
    }
  });
}

void embedding_backward(const Tensor& d_table, const Tensor& d_out, const Tensor& ids) {
  require_fp32("embedding gradient", {&d_table});
  require_compute_dtype("embedding gradient", {&d_out});
  const std::int64_t tokens = ids.elements(), columns = d_table.size(1);
  BALEEN_CHECK(d_table.dims() == 2 && d_out.elements() == tokens * columns, d_out.elements(), tokens, columns);
  check_indices(ids, d_table.size(0), absent_id);
  // A thread owns columns, whole cache lines of them, and walks all tokens: no two threads write one element, and the order is that of N.
  parallel_ranges(columns, 16, worthwhile_rows(tokens), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddRows)(d_table, d_out, ids.as<std::int32_t>(), tokens, begin, end);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
