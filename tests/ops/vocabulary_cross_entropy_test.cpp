#include "ops/vocabulary_cross_entropy.h"

#include "ops/cross_entropy.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

// The columns [begin, end) of logits [rows, columns].
Array columns_of(const Array& logits, std::int64_t rows, std::int64_t columns, std::int64_t begin, std::int64_t end) {
  Array part(rows * (end - begin));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = begin; i < end; ++i) part[row * (end - begin) + i - begin] = logits[row * columns + i];
  return part;
}

// Uneven slices of the vocabulary, one of a single column; more rows than a chunk of losses.
TEST(VocabularyCrossEntropy, SlicesGiveWhatTheWholeVocabularyGives) {
  const std::vector<std::int64_t> borders{0, 1, 20, 57};
  for (const auto& [rows, spread] : std::vector<std::pair<std::int64_t, float>>{{1, 1.0f}, {40, 8.0f}, {1100, 3.0f}}) {
    const std::int64_t vocabulary = borders.back();
    const auto ranks = static_cast<std::int64_t>(borders.size()) - 1;
    Array whole = Array::normal(3, rows * vocabulary, spread);
    std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = i % 7 == 5 ? ignore_index : static_cast<std::int32_t>(i * 11 % 57);
    const Tensor at(targets.data(), DType::i32, {rows});
    float scale = 0.3f;
    const Tensor factor(&scale, DType::f32, {1});

    Array statistics(ranks * rows * vocabulary_statistics);
    std::vector<Array> parts;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      parts.push_back(columns_of(whole, rows, vocabulary, borders[r], borders[r + 1]));
      const Tensor mine = statistics.tensor({ranks, rows, vocabulary_statistics}).rows(rank, 1).reshape({rows, vocabulary_statistics});
      cpu::vocabulary_cross_entropy_statistics(mine, parts.back().tensor({rows, borders[r + 1] - borders[r]}), at, borders[r]);
    }
    double want = 0;
    cross_entropy_with_gradient(Tensor(&want, DType::f64, {1}), whole.tensor({rows, vocabulary}), at, factor);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const std::int64_t width = borders[r + 1] - borders[r];
      double loss = 0, alone = 0;
      const Array untouched = parts[r];
      cpu::vocabulary_cross_entropy(Tensor(&alone, DType::f64, {1}), parts[r].tensor({rows, width}), statistics.flat(), at, borders[r],
                                    Tensor());
      EXPECT_TRUE(parts[r].same_bits(untouched));
      cpu::vocabulary_cross_entropy(Tensor(&loss, DType::f64, {1}), parts[r].tensor({rows, width}), statistics.flat(), at, borders[r],
                                    factor);
      EXPECT_EQ(loss, alone);
      EXPECT_NEAR(loss, want, 1e-6 * std::abs(want));
      const Array expected = columns_of(whole, rows, vocabulary, borders[r], borders[r + 1]);
      for (std::int64_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(parts[r][i], expected[i], 2e-7 + 1e-5 * std::abs(expected[i])) << rank << ", " << i;
    }
  }
}

}  // namespace
}  // namespace baleen::ops::testing
