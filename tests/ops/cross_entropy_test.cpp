#include "ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/golden.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

struct Result {
  double loss;
  std::vector<double> gradient;
};

// log Σ exp in long double, without the maximum's shift: the logits here are small enough.
Result reference(const Array& logits, const std::vector<std::int32_t>& targets, std::int64_t vocabulary, double scale) {
  Result result{0, std::vector<double>(static_cast<std::size_t>(logits.size()))};
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == ignore_index) continue;
    const auto at = [&](std::int64_t i) { return static_cast<std::int64_t>(row) * vocabulary + i; };
    long double sum = 0;
    for (std::int64_t i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<long double>(logits[at(i)]));
    result.loss += static_cast<double>(std::log(sum)) - logits[at(targets[row])];
    for (std::int64_t i = 0; i < vocabulary; ++i)
      result.gradient[static_cast<std::size_t>(at(i))] =
          scale * (static_cast<double>(std::exp(static_cast<long double>(logits[at(i)])) / sum) - (i == targets[row] ? 1.0 : 0.0));
  }
  return result;
}

std::vector<std::int32_t> some_targets(std::int64_t rows, std::int64_t vocabulary) {
  std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
  const Philox philox(5);
  for (std::size_t i = 0; i < targets.size(); ++i)
    targets[i] = i % 5 == 3 ? ignore_index : static_cast<std::int32_t>(philox(i)[0] % static_cast<std::uint32_t>(vocabulary));
  targets[0] = static_cast<std::int32_t>(vocabulary - 1);
  return targets;
}

struct EntropyShape {
  std::int64_t rows, vocabulary;
  float spread;
};
class CrossEntropy : public ::testing::TestWithParam<EntropyShape> {};
// 257: bytes. 2,048 is the block of the running maximum; 5,003 needs three of them. 1,100 rows need two chunks of losses.
INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropy,
                         ::testing::Values(EntropyShape{1, 1, 1}, EntropyShape{3, 2, 1}, EntropyShape{40, 257, 5}, EntropyShape{4, 2048, 3},
                                           EntropyShape{6, 5003, 10}, EntropyShape{1100, 19, 2}));

TEST_P(CrossEntropy, AgreesWithTheDefinition) {
  const auto [rows, vocabulary, spread] = GetParam();
  const Array logits = Array::normal(1, rows * vocabulary, spread);
  std::vector<std::int32_t> targets = some_targets(rows, vocabulary);
  const Tensor target_tensor(targets.data(), DType::i32, {rows});
  float scale = 0.37f;
  const Result want = reference(logits, targets, vocabulary, scale);
  const auto run = [&, &rows = rows, &vocabulary = vocabulary](int threads, double& loss) {
    const ThreadsScope scope(threads);
    Array gradient = logits;
    cross_entropy_with_gradient(Tensor(&loss, DType::f64, {1}), gradient.tensor({rows, vocabulary}), target_tensor,
                                Tensor(&scale, DType::f32, {1}));
    return gradient;
  };
  double loss = 2.5, with_gradient = 0, with_two = 0;
  Array untouched = logits;
  cpu::cross_entropy_forward(Tensor(&loss, DType::f64, {1}), untouched.tensor({rows, vocabulary}), target_tensor);
  EXPECT_NEAR(loss, 2.5 + want.loss, 1e-6 * want.loss);
  EXPECT_TRUE(untouched.same_bits(logits));
  const Array gradient = run(1, with_gradient);
  EXPECT_NEAR(with_gradient, want.loss, 1e-6 * want.loss);
  EXPECT_LE(relative_error(gradient, want.gradient), fp32_bound);
  EXPECT_TRUE(run(2, with_two).same_bits(gradient));
  EXPECT_EQ(with_two, with_gradient);
}

TEST(CrossEntropyEdges, LargeLogitsAndLateMaximaDoNotOverflow) {
  constexpr std::int64_t vocabulary = 4100;
  Array logits(vocabulary, -3000.0f);
  logits[4099] = 3000.0f;  // the last of three blocks
  logits[7] = 2999.0f;
  std::int32_t target = 7;
  double loss = 0;
  float scale = 1;
  cross_entropy_with_gradient(Tensor(&loss, DType::f64, {1}), logits.tensor({1, vocabulary}), Tensor(&target, DType::i32, {1}),
                              Tensor(&scale, DType::f32, {1}));
  EXPECT_NEAR(loss, std::log1p(std::exp(1.0)), 1e-6);  // log(e^0 + e^-1) + 1
  EXPECT_NEAR(logits[4099], 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(logits[7], 1 / (1 + std::exp(1.0)) - 1, 1e-6);
  EXPECT_NEAR(logits[100], 0, 1e-30);
}

TEST(CrossEntropyEdges, LogitsOfMinusInfinityCountForNothing) {
  constexpr std::int64_t vocabulary = 4200;
  for (const std::int64_t finite : {0, 2050, 4190}) {  // before it more than a block of the running maximum, or all of one
    Array logits(vocabulary, -std::numeric_limits<float>::infinity());
    logits[finite] = logits[finite + 1] = 2.0f;
    std::int32_t target = static_cast<std::int32_t>(finite);
    double loss = 0;
    float scale = 1;
    cross_entropy_with_gradient(Tensor(&loss, DType::f64, {1}), logits.tensor({1, vocabulary}), Tensor(&target, DType::i32, {1}),
                                Tensor(&scale, DType::f32, {1}));
    EXPECT_NEAR(loss, std::log(2.0), 1e-6) << finite;
    EXPECT_NEAR(logits[finite], -0.5, 1e-6) << finite;
    EXPECT_NEAR(logits[finite + 1], 0.5, 1e-6) << finite;
    EXPECT_NEAR(logits[(finite + 3000) % vocabulary], 0, 1e-30) << finite;
  }
}

TEST(CrossEntropyEdges, NotANumberReachesTheLossWhereverItStands) {
  for (const std::int64_t at : {0, 5, 2047, 2048, 2060}) {
    Array logits(2061, 0.5f);
    logits[at] = poison;
    std::int32_t target = 3;
    double loss = 0;
    cpu::cross_entropy_forward(Tensor(&loss, DType::f64, {1}), logits.tensor({1, 2061}), Tensor(&target, DType::i32, {1}));
    EXPECT_TRUE(std::isnan(loss)) << at;
  }
}

// Gradients in bf16 are rounded by a way that takes no NaN with bits in the lower half: from bf16 none has them.
TEST(CrossEntropyEdges, NotANumberInHalvesReachesAllOfItsRow) {
  for (const std::uint16_t bits : {0x7fc0, 0xffc0, 0x7fff, 0xffff, 0x7f81, 0xff81})  // quiet, with all bits, signalling
    for (const std::size_t at : {0u, 5u, 2048u, 2060u}) {
      std::vector<BFloat16> logits(2061, to_bfloat16(0.5f));
      logits[at].bits = bits;
      std::int32_t target = 3;
      double loss = 0;
      float scale = 1;
      cross_entropy_with_gradient(Tensor(&loss, DType::f64, {1}), Tensor(logits.data(), DType::bf16, {1, 2061}),
                                  Tensor(&target, DType::i32, {1}), Tensor(&scale, DType::f32, {1}));
      EXPECT_TRUE(std::isnan(loss)) << at;
      EXPECT_TRUE(std::ranges::all_of(logits, [](BFloat16 gradient) { return std::isnan(to_float(gradient)); })) << bits << " at " << at;
    }
}

TEST(CrossEntropyEdges, RefusesTargetsOutsideTheVocabularyAndTakesNoRows) {
  Array logits(4, 0.0f), nothing(0);
  double loss = 0;
  for (const std::int32_t bad : {4, -1, -99}) {
    std::int32_t target = bad;
    EXPECT_THROW(cpu::cross_entropy_forward(Tensor(&loss, DType::f64, {1}), logits.tensor({1, 4}), Tensor(&target, DType::i32, {1})), Error)
        << bad;
  }
  cpu::cross_entropy_forward(Tensor(&loss, DType::f64, {1}), nothing.tensor({0, 4}), Tensor(nullptr, DType::i32, {0}));
  EXPECT_EQ(loss, 0.0);
}

TEST(CrossEntropyGolden, MeanOverValidTargetsAgreesWithPyTorch) {
  const Golden golden("cross_entropy");
  Array logits = golden.array("logits");
  std::vector<std::int32_t> targets = golden.integers("targets");
  double loss = 0;
  float scale = 1.0f / 7;  // seven of the nine targets are valid
  cross_entropy_with_gradient(Tensor(&loss, DType::f64, {1}), logits.tensor({9, 37}), Tensor(targets.data(), DType::i32, {9}),
                              Tensor(&scale, DType::f32, {1}));
  EXPECT_NEAR(loss / 7, golden.want("mean_loss")[0], 1e-6 * golden.want("mean_loss")[0]);
  EXPECT_LE(relative_error(logits, golden.want("d_logits")), fp32_bound);
}

}  // namespace
}  // namespace baleen::ops::testing
