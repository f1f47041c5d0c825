#include "ops/cpu/pack_pairs.h"

#include "ops/support.h"
#include "ops/targets.h"

namespace baleen::ops::testing {
namespace {

struct Layout {
  std::int64_t rows, columns;
  bool transposed;
  std::int64_t padding, offset;  // elements between stored rows, and before the first
};

void expect_pairs(const Layout& layout) {
  constexpr std::int64_t panel = 64;
  constexpr std::uint16_t poison = 0x7fc1;
  const auto& [held_rows, held_columns, transposed, padding, offset] = layout;
  const std::int64_t stored_rows = transposed ? held_columns : held_rows, stored_columns = transposed ? held_rows : held_columns;
  const std::int64_t stride = stored_columns + padding;
  std::vector<std::uint16_t> from(static_cast<std::size_t>(offset + stored_rows * stride));
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint16_t>(i % 65521 + 1);
  Matrix b(from.data() + offset, DType::bf16, stored_rows, stored_columns, stride);
  b.transposed = transposed;
  const std::int64_t rows = (held_rows + 31) / 32 * 32, columns = (held_columns + panel - 1) / panel * panel;
  std::vector<std::uint16_t> to(static_cast<std::size_t>(rows * columns), poison);
  cpu::pack_pairs(to.data(), b);
  for (std::int64_t column = 0; column < columns; ++column)
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<std::size_t>(column / panel * panel * rows + row / 2 * 2 * panel + column % panel * 2 + row % 2);
      const auto source = static_cast<std::size_t>(offset + (transposed ? column * stride + row : row * stride + column));
      ASSERT_EQ(to[at], row < held_rows && column < held_columns ? from[source] : 0)
          << held_rows << 'x' << held_columns << (transposed ? " transposed" : "") << " padding " << padding << " offset " << offset << ": "
          << row << ' ' << column;
    }
}

// Whole panels and blocks of rows; an odd row; columns that fill no panel; all of it smaller than one.
TEST(PackPairs, EveryElementIsInItsPairAndTheRestIsZero) {
  for (const bool portable : {false, true})
    for (const int threads : {1, 2}) {
      const InstructionsScope instructions(portable);
      const ThreadsScope scope(threads);
      for (const auto& [rows, columns] :
           std::initializer_list<std::pair<int, int>>{{64, 128}, {384, 256}, {71, 128}, {96, 70}, {33, 129}, {5, 3}})
        for (const bool transposed : {false, true})
          for (const std::int64_t padding : {0, 1, 6})
            for (const std::int64_t offset : {0, 1}) expect_pairs({rows, columns, transposed, padding, offset});
    }
}

}  // namespace
}  // namespace baleen::ops::testing
