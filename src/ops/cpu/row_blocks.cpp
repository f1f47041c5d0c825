#include "ops/row_blocks.h"

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/row_blocks.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// Rows [begin, end) of all sequences together.
void MoveRows(const RowBlockShape& shape, const RowBlock& to, const RowBlock& from, bool add, std::int64_t begin, std::int64_t end) {
  const auto columns = static_cast<std::size_t>(shape.columns);
  ForStorage(to.tensor.dtype(), [&](auto to_zero) HWY_ATTR {
    ForStorage(from.tensor.dtype(), [&](auto from_zero) HWY_ATTR {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t b = row / shape.rows, r = row % shape.rows;
        auto* out = to.tensor.as<decltype(to_zero)>() + b * to.batch_stride + r * to.row_stride;
        const auto* in = from.tensor.as<decltype(from_zero)>() + b * from.batch_stride + r * from.row_stride;
        if (add)
          ForVectors(columns, [&](std::size_t i, auto width)
                                  HWY_ATTR { StoreVec(hn::Add(LoadVec(out + i, width), LoadVec(in + i, width)), out + i, width); });
        else
          ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR { StoreVec(LoadVec(in + i, width), out + i, width); });
      }
    });
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(MoveRows);

void move_rows(const RowBlockShape& shape, const RowBlock& to, const RowBlock& from, bool add) {
  require_compute_dtype("moving rows", {&to.tensor, &from.tensor});
  parallel_ranges(shape.batch * shape.rows, 1, worthwhile_rows(shape.columns),
                  [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(MoveRows)(shape, to, from, add, begin, end); });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
