#include "ops/embedding.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/embedding.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// Columns [begin, begin + count) of one row of d_table += those of d_out's rows `tokens`, one after the other, rounded once at the end.
template <class Gradient, class T>
HWY_INLINE void AddRowsOfId(Gradient* to, const T* d_out, std::int64_t columns, std::span<const std::int32_t> tokens, std::size_t count) {
  const FloatTag d;
  constexpr std::size_t strip = 1024;
  HWY_ALIGN float totals[strip + HWY_MAX_BYTES / sizeof(float)];
  for (std::size_t begin = 0; begin < count; begin += strip) {
    const std::size_t strip_width = HWY_MIN(strip, count - begin);
    ForVectors(strip_width, [&](std::size_t i, auto width) HWY_ATTR { hn::Store(LoadVec(to + begin + i, width), d, totals + i); });
    for (const std::int32_t token : tokens) {
      const T* const from = d_out + token * columns + begin;
      ForVectors(strip_width, [&](std::size_t i, auto width)
                                  HWY_ATTR { hn::Store(hn::Add(hn::Load(d, totals + i), LoadVec(from + i, width)), d, totals + i); });
    }
    ForVectors(strip_width, [&](std::size_t i, auto width) HWY_ATTR { StoreVec(hn::Load(d, totals + i), to + begin + i, width); });
  }
}

// Columns [begin, end) of d_table's rows += those of d_out; `tokens` are sorted by id.
void AddRows(const Tensor& d_table, const Tensor& d_out, const std::int32_t* ids, std::span<const std::int32_t> tokens, std::int64_t begin,
             std::int64_t end) {
  const std::int64_t columns = d_table.size(1);
  ForStorage(d_table.dtype(), [&](auto gradient_zero) HWY_ATTR {
    ForStorage(d_out.dtype(), [&](auto zero) HWY_ATTR {
      for (std::size_t first = 0, last = 0; first < tokens.size(); first = last) {
        const std::int32_t id = ids[tokens[first]];
        while (last < tokens.size() && ids[tokens[last]] == id) ++last;
        AddRowsOfId(d_table.as<decltype(gradient_zero)>() + id * columns + begin, d_out.as<decltype(zero)>() + begin, columns,
                    tokens.subspan(first, last - first), static_cast<std::size_t>(end - begin));
      }
    });
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

std::size_t embedding_backward_workspace(std::int64_t tokens) {
  return static_cast<std::size_t>(tokens) * sizeof(std::int32_t);
}

void embedding_backward(const Tensor& d_table, const Tensor& d_out, const Tensor& ids, void* workspace) {
  require_compute_dtype("embedding gradient", {&d_out});
  require_gradient_dtype("embedding gradient", {&d_table}, d_out.dtype());
  const std::int64_t tokens = ids.elements(), columns = d_table.size(1);
  BALEEN_CHECK(d_table.dims() == 2 && d_out.elements() == tokens * columns, d_out.elements(), tokens, columns);
  BALEEN_CHECK(tokens <= std::numeric_limits<std::int32_t>::max(), tokens);
  check_indices(ids, d_table.size(0), absent_id);
  // The tokens that have a row here, by id and then in the order of N.
  const std::int32_t* const id = ids.as<std::int32_t>();
  auto* const sorted = static_cast<std::int32_t*>(workspace);
  std::size_t count = 0;
  for (std::int32_t token = 0; token < tokens; ++token)
    if (id[token] != absent_id) sorted[count++] = token;
  std::sort(sorted, sorted + count, [&](std::int32_t a, std::int32_t b) { return id[a] != id[b] ? id[a] < id[b] : a < b; });
  // A thread owns columns, whole cache lines of them, and walks all tokens: no two threads write one element.
  parallel_ranges(columns, 16, worthwhile_rows(tokens), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddRows)(d_table, d_out, id, std::span<const std::int32_t>(sorted, count), begin, end);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
