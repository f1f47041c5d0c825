#include "ops/embedding.h"

#include "ops/golden.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

std::vector<std::int32_t> some_ids(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  const Philox philox(7);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(philox(i)[0] % static_cast<std::uint32_t>(vocabulary));
  return ids;
}

TEST(Embedding, ForwardCopiesRowsOfAnyDtype) {
  const ThreadsScope threads(2);
  constexpr std::int64_t tokens = 501, vocabulary = 33, columns = 21;
  std::vector<std::int32_t> ids = some_ids(tokens, vocabulary);
  const Tensor id_tensor(ids.data(), DType::i32, {tokens});
  Array table = Array::normal(1, vocabulary * columns), out(tokens * columns);
  cpu::embedding_forward(out.tensor({tokens, columns}), id_tensor, table.tensor({vocabulary, columns}));
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t i = 0; i < columns; ++i) ASSERT_EQ(out[n * columns + i], table[ids[static_cast<std::size_t>(n)] * columns + i]);

  std::vector<BFloat16> half_table(vocabulary * columns), half_out(tokens * columns);
  for (std::size_t i = 0; i < half_table.size(); ++i) half_table[i].bits = static_cast<std::uint16_t>(i);
  cpu::embedding_forward(Tensor(half_out.data(), DType::bf16, {tokens, columns}), id_tensor,
                         Tensor(half_table.data(), DType::bf16, {vocabulary, columns}));
  for (std::int64_t n = 0; n < tokens; ++n)
    ASSERT_EQ(half_out[static_cast<std::size_t>(n * columns + 4)].bits, ids[static_cast<std::size_t>(n)] * columns + 4);
}

TEST(Embedding, BackwardAddsEachIdsRowsInOrderForAnyNumberOfThreads) {
  constexpr std::int64_t tokens = 700, vocabulary = 9, columns = 75;
  std::vector<std::int32_t> ids = some_ids(tokens, vocabulary);
  Array d_out = Array::normal(1, tokens * columns);
  const Array before = Array::normal(2, vocabulary * columns);
  const auto run = [&](int threads) {
    const ThreadsScope scope(threads);
    const Workspace sorted(cpu::embedding_backward_workspace(tokens));
    Array d_table = before;
    cpu::embedding_backward(d_table.tensor({vocabulary, columns}), d_out.tensor({tokens, columns}),
                            Tensor(ids.data(), DType::i32, {tokens}), sorted.data());
    return d_table;
  };
  const Array one = run(1), two = run(2);
  Array want = before;  // fp32 in the order of N is the promise, so the bits are known
  std::vector<double> exact = before.doubles();
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t i = 0; i < columns; ++i) {
      const std::int64_t at = ids[static_cast<std::size_t>(n)] * columns + i;
      want[at] += d_out[n * columns + i];
      exact[static_cast<std::size_t>(at)] += d_out[n * columns + i];
    }
  EXPECT_TRUE(one.same_bits(want));
  EXPECT_TRUE(two.same_bits(want));
  EXPECT_LE(relative_error(one, exact), fp32_bound);
}

TEST(Embedding, AgreesWithPyTorch) {
  const Golden golden("embedding");
  Array table = golden.array("table"), d_out = golden.array("d_out"), out(110), d_table(66, 0.0f);
  std::vector<std::int32_t> ids = golden.integers("ids");
  const Tensor id_tensor(ids.data(), DType::i32, {10});
  cpu::embedding_forward(out.tensor({10, 11}), id_tensor, table.tensor({6, 11}));
  const Workspace sorted(cpu::embedding_backward_workspace(10));
  cpu::embedding_backward(d_table.tensor({6, 11}), d_out.tensor({10, 11}), id_tensor, sorted.data());
  EXPECT_LE(relative_error(out, golden.want("out")), fp32_bound);
  EXPECT_LE(relative_error(d_table, golden.want("d_table")), fp32_bound);
}

TEST(Embedding, AnAbsentIdGivesZerosAndTakesNoGradient) {
  Array table = Array::normal(1, 12), out(6), d_out = Array::normal(2, 6);
  std::int32_t ids[] = {absent_id, 2};
  const Tensor id_tensor(ids, DType::i32, {2});
  cpu::embedding_forward(out.tensor({2, 3}), id_tensor, table.tensor({4, 3}));
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out[i], 0.0f);
    EXPECT_EQ(out[3 + i], table[6 + i]);
  }
  const Array before = table;
  const Workspace sorted(cpu::embedding_backward_workspace(2));
  cpu::embedding_backward(table.tensor({4, 3}), d_out.tensor({2, 3}), id_tensor, sorted.data());
  for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(table[i], before[i] + (i / 3 == 2 ? d_out[3 + i % 3] : 0.0f)) << i;
}

TEST(Embedding, RefusesIdsOutsideTheTableAndTakesNone) {
  Array table(12), out(3), nothing(0);
  const Workspace sorted(cpu::embedding_backward_workspace(1));
  for (const std::int32_t bad : {-2, 4, -100}) {
    std::int32_t id = bad;
    const Tensor ids(&id, DType::i32, {1});
    EXPECT_THROW(cpu::embedding_forward(out.tensor({1, 3}), ids, table.tensor({4, 3})), Error) << bad;
    EXPECT_THROW(cpu::embedding_backward(table.tensor({4, 3}), out.tensor({1, 3}), ids, sorted.data()), Error) << bad;
  }
  cpu::embedding_forward(nothing.tensor({0, 3}), Tensor(nullptr, DType::i32, {0}), table.tensor({4, 3}));
  cpu::embedding_backward(table.tensor({4, 3}), nothing.tensor({0, 3}), Tensor(nullptr, DType::i32, {0}), nullptr);
}

}  // namespace
}  // namespace baleen::ops::testing
