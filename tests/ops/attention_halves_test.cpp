// Attention through the library's products of bf16, against its definition in float64 on the same rounded inputs.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/attention_reference.h"
#include "ops/cpu/attention_halves.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

// Rows of q and out lie apart; k and v share rows, k first.
class HalvesRun {
 public:
  HalvesRun(const AttentionCase& c, int threads) : case_(c), shape_(c.shape()) {
    const ThreadsScope scope(threads);
    const Workspace forward(cpu::attention_forward_workspace(shape_, DType::bf16, false)),
        backward(cpu::attention_backward_workspace(shape_, DType::bf16, false));
    const auto value = [&](HalfArray& rows) { return rows.from(c.kv_heads * c.head_dim); };
    cpu::attention_forward(shape_, out.flat(), lse.flat(), q.flat(), kv.flat(), value(kv), Tensor(), forward.data());
    cpu::attention_backward(shape_, d_q.flat(), d_kv.flat(), value(d_kv), d_out.flat(), q.flat(), kv.flat(), value(kv), out.flat(),
                            lse.flat(), Tensor(), backward.data());
  }
  // The elements of the heads in rows `stride` apart, the first at `begin`; what lies between must be as it was.
  std::vector<double> dense(const HalfArray& array, std::int64_t width, std::int64_t stride, std::int64_t begin = 0) const {
    std::vector<double> values;
    for (std::int64_t token = 0; token < case_.batch * case_.query_length; ++token)
      for (std::int64_t i = 0; i < width; ++i) values.push_back(to_float(array[begin + token * stride + i]));
    return values;
  }
  static std::int64_t poisoned(const HalfArray& array) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < array.size(); ++i) count += std::isnan(to_float(array[i]));
    return count;
  }
  std::int64_t query_width() const { return case_.heads * case_.head_dim; }
  std::int64_t key_width() const { return case_.kv_heads * case_.head_dim; }
  AttentionValues inputs() const {
    AttentionValues a;
    a.q = dense(q, query_width(), shape_.query_stride), a.d_out = dense(d_out, query_width(), shape_.out_stride);
    a.k = dense(kv, key_width(), shape_.key_stride), a.v = dense(kv, key_width(), shape_.key_stride, key_width());
    return a;
  }
  const AttentionShape& shape() const { return shape_; }
  std::int64_t tokens() const { return case_.batch * case_.query_length; }

 private:
  AttentionCase case_;
  AttentionShape shape_;

 public:
  HalfArray q{Array::normal(1, tokens() * shape_.query_stride)}, kv{Array::normal(2, tokens() * shape_.key_stride)},
      d_out{Array::normal(3, tokens() * shape_.out_stride)};
  HalfArray out{d_out.size()}, d_q{q.size()}, d_kv{kv.size()};
  Array lse{case_.batch * case_.heads * case_.query_length};
};

bool here() {
  return cpu::processor_has(dnnl::cpu_isa::avx512_core_bf16);
}

// Of 64 tokens, of a tile with and without AMX (256 and 128), of several, and of several and a part.
class AttentionHalves : public ::testing::TestWithParam<AttentionCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, AttentionHalves,
                         ::testing::Values(AttentionCase{"part_of_a_tile", 2, 64, 64, 2, 2, 64},
                                           AttentionCase{"tile_128", 1, 128, 128, 4, 2, 32},
                                           AttentionCase{"tile_and_part", 2, 192, 192, 2, 1, 96},
                                           AttentionCase{"tile_256", 1, 256, 256, 2, 1, 64},
                                           AttentionCase{"tiles_and_part", 1, 320, 320, 1, 1, 32},
                                           AttentionCase{"tiles", 1, 512, 512, 1, 1, 32}, AttentionCase{"width_256", 1, 64, 64, 1, 1, 256}),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(AttentionHalves, AgreesWithTheDefinition) {
  if (!here()) GTEST_SKIP() << "this processor does not multiply bf16";
  const HalvesRun run(GetParam(), 2);
  ASSERT_TRUE(cpu::multiplies_halves(run.shape(), DType::bf16, false));
  AttentionValues want = run.inputs();
  const AttentionReference reference(GetParam());
  reference.forward(want);
  reference.backward(want);
  EXPECT_LE(relative_error(run.lse, want.lse), fp32_bound);
  const auto expect_rounded = [&](const char* what, const std::vector<double>& got, const std::vector<double>& exact) {
    std::vector<double> rounded;
    for (const double value : exact) rounded.push_back(to_float(to_bfloat16(static_cast<float>(value))));
    // Rounded as often: probabilities, or the gradients of scores; the output, of which the sum in these is made; the result.
    EXPECT_LE(relative_error(got, exact), std::sqrt(3.0) * relative_error(rounded, exact)) << what;
  };
  expect_rounded("out", run.dense(run.out, run.query_width(), run.shape().out_stride), want.out);
  expect_rounded("d_q", run.dense(run.d_q, run.query_width(), run.shape().query_stride), want.d_q);
  expect_rounded("d_k", run.dense(run.d_kv, run.key_width(), run.shape().key_stride), want.d_k);
  expect_rounded("d_v", run.dense(run.d_kv, run.key_width(), run.shape().key_stride, run.key_width()), want.d_v);
  EXPECT_EQ(HalvesRun::poisoned(run.out), run.out.size() - run.tokens() * run.query_width());
  EXPECT_EQ(HalvesRun::poisoned(run.d_q), run.d_q.size() - run.tokens() * run.query_width());
  EXPECT_EQ(HalvesRun::poisoned(run.d_kv), run.d_kv.size() - 2 * run.tokens() * run.key_width());
}

TEST_P(AttentionHalves, SameBitsWithAnyNumberOfThreads) {
  const HalvesRun one(GetParam(), 1), three(GetParam(), 3);
  EXPECT_TRUE(one.out.same_bits(three.out) && one.lse.same_bits(three.lse) && one.d_q.same_bits(three.d_q) &&
              one.d_kv.same_bits(three.d_kv));
}

TEST(AttentionHalvesEdges, TakesWholeSequencesAlone) {
  const AttentionCase whole{"whole", 1, 64, 64, 2, 1, 32};
  const auto takes = [](AttentionCase c, auto change) {
    AttentionShape shape = c.shape();
    change(shape);
    return cpu::multiplies_halves(shape, DType::bf16, false);
  };
  EXPECT_EQ(takes(whole, [](AttentionShape&) {}), here());
  EXPECT_FALSE(cpu::multiplies_halves(whole.shape(), DType::f32, false));
  EXPECT_FALSE(cpu::multiplies_halves(whole.shape(), DType::bf16, true));
  EXPECT_FALSE(takes(whole, [](AttentionShape& s) { s.query_length = s.key_length = 65; }));
  EXPECT_FALSE(takes(whole, [](AttentionShape& s) { s.query_length = 128; }));
  EXPECT_FALSE(takes(whole, [](AttentionShape& s) { s.query_offset = 64; }));
  EXPECT_FALSE(takes(whole, [](AttentionShape& s) { s.key_batch_stride = 100 * s.key_stride; }));
  EXPECT_FALSE(takes(whole, [](AttentionShape& s) { s.head_dim = 24; }));
  EXPECT_FALSE(takes(whole, [](AttentionShape& s) { s.scale = -1; }));
}

}  // namespace
}  // namespace baleen::ops::testing
