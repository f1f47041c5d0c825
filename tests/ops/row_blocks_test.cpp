#include "ops/row_blocks.h"

#include "ops/support.h"
#include "ops/targets.h"

namespace baleen::ops::testing {
namespace {

// Rows of 19 elements, 30 or 23 apart, of two sequences 200 or 151 apart.
constexpr RowBlockShape shape{2, 5, 19};
constexpr std::int64_t count = 351;

std::int64_t to_at(std::int64_t b, std::int64_t row, std::int64_t column) {
  return 7 + b * 200 + row * 30 + column;
}
std::int64_t from_at(std::int64_t b, std::int64_t row, std::int64_t column) {
  return 3 + b * 151 + row * 23 + column;
}

template <class To, class From>
void move(To& to, From& from, bool add) {
  cpu::move_rows(shape, {to.from(7), 200, 30}, {from.from(3), 151, 23}, add);
}

// Whether each element is what it should be, and those between the rows as before.
template <class To, class Want>
void expect_rows(To& to, const To& before, const Want& want) {
  std::vector<bool> inside(static_cast<std::size_t>(to.size()));
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t row = 0; row < shape.rows; ++row)
      for (std::int64_t column = 0; column < shape.columns; ++column) {
        inside[static_cast<std::size_t>(to_at(b, row, column))] = true;
        ASSERT_TRUE(want(to_at(b, row, column), from_at(b, row, column))) << b << " " << row << " " << column;
      }
  To outside_now = to, outside_before = before;
  for (std::int64_t i = 0; i < to.size(); ++i)
    if (inside[static_cast<std::size_t>(i)]) outside_now[i] = outside_before[i] = {};
  EXPECT_TRUE(outside_now.same_bits(outside_before));
}

TEST(RowBlocks, CopyAndAddInBothDtypes) {
  for (const bool portable : {false, true}) {
    const InstructionsScope instructions(portable);
    const ThreadsScope threads(2);
    const Array to0 = Array::normal(1, count), from0 = Array::normal(2, count);
    const HalfArray half_to0(to0), half_from0(from0);
    Array from = from0;
    HalfArray half_from = half_from0;
    {
      Array to = to0;
      move(to, from, false);
      expect_rows(to, to0, [&](std::int64_t t, std::int64_t f) { return to[t] == from[f]; });
    }
    {
      Array to = to0;
      move(to, half_from, true);
      expect_rows(to, to0, [&](std::int64_t t, std::int64_t f) { return to[t] == to0[t] + to_float(half_from[f]); });
    }
    {
      HalfArray to = half_to0;
      move(to, from, false);
      expect_rows(to, half_to0, [&](std::int64_t t, std::int64_t f) { return to[t].bits == to_bfloat16(from[f]).bits; });
    }
    {
      HalfArray to = half_to0;  // rounded once, not both
      move(to, from, true);
      expect_rows(to, half_to0,
                  [&](std::int64_t t, std::int64_t f) { return to[t].bits == to_bfloat16(to_float(half_to0[t]) + from[f]).bits; });
    }
    {
      HalfArray to = half_to0;
      move(to, half_from, true);
      expect_rows(to, half_to0, [&](std::int64_t t, std::int64_t f) {
        return to[t].bits == to_bfloat16(to_float(half_to0[t]) + to_float(half_from[f])).bits;
      });
    }
  }
}

TEST(RowBlocks, NothingToMove) {
  Array to(4, 1.0f), from(4, 2.0f);
  for (const RowBlockShape& empty : {RowBlockShape{0, 2, 2}, RowBlockShape{1, 0, 2}, RowBlockShape{1, 2, 0}})
    cpu::move_rows(empty, {to.flat(), 0, 2}, {from.flat(), 0, 2}, false);
  EXPECT_TRUE(to.same_bits(Array(4, 1.0f)));
}

}  // namespace
}  // namespace baleen::ops::testing
