#include "ops/cpu/transpose.h"

#include <array>
#include <numeric>
#include <vector>

#include "ops/cpu/copy_rows.h"
#include "ops/support.h"
#include "ops/targets.h"

namespace baleen::ops::testing {
namespace {

template <class Word>
void expect_transposed(DType dtype, std::int64_t rows, std::int64_t columns) {
  const std::int64_t from_stride = columns + 3, to_stride = rows + 2;
  const auto untouched = static_cast<Word>(-1);
  std::vector<Word> from(static_cast<std::size_t>(rows * from_stride)), to(static_cast<std::size_t>(columns * to_stride), untouched);
  std::iota(from.begin(), from.end(), Word{0});
  cpu::transpose_copy(Matrix(to.data(), dtype, columns, rows, to_stride), Matrix(from.data(), dtype, rows, columns, from_stride));
  for (std::int64_t column = 0; column < columns; ++column)
    for (std::int64_t row = 0; row < to_stride; ++row)
      ASSERT_EQ(to[static_cast<std::size_t>(column * to_stride + row)],
                row < rows ? from[static_cast<std::size_t>(row * from_stride + column)] : untouched)
          << rows << 'x' << columns << ": " << row << ' ' << column;
}

TEST(TransposeCopy, MovesEveryElementAndNoOther) {
  for (const bool portable : {false, true}) {
    const InstructionsScope scope(portable);
    for (const auto& [rows, columns] : {std::array<std::int64_t, 2>{1, 1}, {8, 8}, {7, 9}, {32, 32}, {33, 70}, {128, 300}, {0, 5}}) {
      expect_transposed<std::uint16_t>(DType::bf16, rows, columns);
      expect_transposed<std::uint32_t>(DType::f32, rows, columns);
    }
  }
}

TEST(CopyRows, CopiesEveryElementAndNoOther) {
  // Rows that begin and end inside cache lines, that are shorter than one, and of several.
  for (const bool portable : {false, true})
    for (const bool streamed : {false, true})
      for (const std::int64_t columns : {0, 1, 31, 32, 33, 200})
        for (std::int64_t begin = 0; begin < 33; begin += 4) {
          const InstructionsScope scope(portable);
          constexpr std::int64_t rows = 3;
          const std::int64_t from_stride = columns + 1, to_stride = columns + 37;
          std::vector<std::uint16_t> from(static_cast<std::size_t>(rows * from_stride + 1)),
              to(static_cast<std::size_t>(rows * to_stride + 64), 0xffff);
          std::iota(from.begin(), from.end(), std::uint16_t{0});
          std::vector<std::uint16_t> want = to;
          for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t column = 0; column < columns; ++column)
              want[static_cast<std::size_t>(begin + row * to_stride + column)] = from[static_cast<std::size_t>(row * from_stride + column)];
          cpu::copy_rows(Matrix(to.data() + begin, DType::bf16, rows, columns, to_stride),
                         Matrix(from.data(), DType::bf16, rows, columns, from_stride), streamed);
          ASSERT_EQ(to, want) << columns << ' ' << begin << ' ' << streamed;
        }
}

}  // namespace
}  // namespace baleen::ops::testing
