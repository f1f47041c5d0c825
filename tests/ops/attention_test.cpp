#include "ops/attention.h"

#include "ops/attention_reference.h"
#include "ops/golden.h"

namespace baleen::ops::testing {
namespace {

// Rows of `width` elements among `rows`, `stride` apart and beginning at `begin` in an array; what lies between is poison.
struct Rows {
  std::int64_t sequences, rows, width, stride, sequence_stride, begin;
};

void scatter(const std::vector<double>& dense, const Rows& r, Array& array) {
  std::size_t next = 0;
  for (std::int64_t b = 0; b < r.sequences; ++b)
    for (std::int64_t t = 0; t < r.rows; ++t)
      for (std::int64_t i = 0; i < r.width; ++i)
        array[r.begin + b * r.sequence_stride + t * r.stride + i] = static_cast<float>(dense[next++]);
}
std::vector<double> gather(const Array& array, const Rows& r) {
  std::vector<double> dense;
  for (std::int64_t b = 0; b < r.sequences; ++b)
    for (std::int64_t t = 0; t < r.rows; ++t)
      for (std::int64_t i = 0; i < r.width; ++i) dense.push_back(array[r.begin + b * r.sequence_stride + t * r.stride + i]);
  return dense;
}
std::int64_t count_poison(const Array& array) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < array.size(); ++i) count += std::isnan(array[i]);
  return count;
}

// The op's own memory for a case: q and out in rows with padding, k and v side by side in one row, with padding.
class AttentionRun {
 public:
  AttentionRun(const AttentionCase& c, const AttentionValues& values, int threads)
      : case_(c),
        shape_(c.shape()),
        q_rows_{c.batch, c.query_length, c.heads * c.head_dim, shape_.query_stride, c.query_length * shape_.query_stride, 0},
        out_rows_{c.batch, c.query_length, c.heads * c.head_dim, shape_.out_stride, c.query_length * shape_.out_stride, 0},
        k_rows_{c.batch, c.key_length, c.kv_heads * c.head_dim, shape_.key_stride, (c.key_length + c.room) * shape_.key_stride, 0},
        v_rows_(k_rows_),
        q_(c.batch * q_rows_.sequence_stride),
        kv_(c.batch * k_rows_.sequence_stride),
        d_out_(c.batch * out_rows_.sequence_stride),
        out_(d_out_),
        lse_(c.batch * c.heads * c.query_length),
        d_q_(q_),
        d_kv_(kv_) {
    v_rows_.begin = c.kv_heads * c.head_dim;
    scatter(values.q, q_rows_, q_);
    scatter(values.k, k_rows_, kv_);
    scatter(values.v, v_rows_, kv_);
    scatter(values.d_out, out_rows_, d_out_);
    for (std::int64_t b = 0; b < c.batch; ++b) documents_.insert(documents_.end(), c.document_begin.begin(), c.document_begin.end());
    run(threads);
  }

  AttentionValues results() const {
    AttentionValues values;
    values.out = gather(out_, out_rows_);
    values.lse = lse_.doubles();
    values.d_q = gather(d_q_, q_rows_), values.d_k = gather(d_kv_, k_rows_), values.d_v = gather(d_kv_, v_rows_);
    return values;
  }
  bool same_bits(const AttentionRun& other) const {
    return out_.same_bits(other.out_) && lse_.same_bits(other.lse_) && d_q_.same_bits(other.d_q_) && d_kv_.same_bits(other.d_kv_);
  }
  // Whether each element between the rows is as poisonous as before.
  bool padding_untouched() const {
    const std::int64_t queries = case_.batch * case_.query_length, keys = case_.batch * case_.key_length;
    return count_poison(out_) == out_.size() - queries * out_rows_.width && count_poison(d_q_) == d_q_.size() - queries * q_rows_.width &&
           count_poison(d_kv_) == d_kv_.size() - 2 * keys * k_rows_.width;
  }

 private:
  void run(int count) {
    const ThreadsScope scope(count);
    const Tensor documents =
        documents_.empty() ? Tensor() : Tensor(documents_.data(), DType::i32, {static_cast<std::int64_t>(documents_.size())});
    const auto v = [&](Array& array) { return array.from(array.size() == 0 ? 0 : v_rows_.begin); };
    const Workspace workspace(cpu::attention_backward_workspace(shape_, DType::f32, false));
    cpu::attention_forward(shape_, out_.flat(), lse_.flat(), q_.flat(), kv_.flat(), v(kv_), documents, nullptr);
    cpu::attention_backward(shape_, d_q_.flat(), d_kv_.flat(), v(d_kv_), d_out_.flat(), q_.flat(), kv_.flat(), v(kv_), out_.flat(),
                            lse_.flat(), documents, workspace.data());
  }

  AttentionCase case_;
  AttentionShape shape_;
  Rows q_rows_, out_rows_, k_rows_, v_rows_;
  Array q_, kv_, d_out_, out_, lse_, d_q_, d_kv_;
  std::vector<std::int32_t> documents_;
};

AttentionValues random_values(const AttentionCase& c, float spread = 1.0f) {
  AttentionValues values;
  const std::int64_t q = c.batch * c.query_length * c.heads * c.head_dim, k = c.batch * c.key_length * c.kv_heads * c.head_dim;
  values.q = Array::normal(1, q, spread).doubles(), values.d_out = Array::normal(2, q).doubles();
  values.k = Array::normal(3, k, spread).doubles(), values.v = Array::normal(4, k).doubles();
  return values;
}

std::vector<std::int32_t> documents(std::int64_t length, std::vector<std::int32_t> begins) {
  std::vector<std::int32_t> result(static_cast<std::size_t>(length));
  for (std::size_t i = 0; i < result.size(); ++i)
    for (const std::int32_t begin : begins)
      if (static_cast<std::int32_t>(i) >= begin) result[i] = begin;
  return result;
}

class Attention : public ::testing::TestWithParam<AttentionCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, Attention,
    ::testing::Values(AttentionCase{"one_token", 1, 1, 1, 1, 1, 8}, AttentionCase{"grouped_narrow", 2, 70, 70, 4, 2, 8},
                      AttentionCase{"narrowest", 1, 67, 67, 2, 1, 2}, AttentionCase{"width_24", 1, 65, 65, 3, 3, 24},
                      AttentionCase{"width_64", 1, 130, 130, 2, 2, 64}, AttentionCase{"width_80_one_kv_head", 1, 97, 97, 4, 1, 80},
                      AttentionCase{"width_128", 2, 66, 66, 2, 1, 128}, AttentionCase{"width_256", 1, 20, 20, 2, 2, 256},
                      AttentionCase{"one_query_of_a_cache", 2, 1, 100, 4, 2, 16, 99, 0, {}, 28},
                      AttentionCase{"queries_after_a_cache", 1, 5, 77, 2, 2, 16, 72},
                      AttentionCase{"keys_all_before", 1, 64, 64, 2, 2, 16, 64, 0},
                      AttentionCase{"keys_all_after", 1, 64, 64, 2, 2, 16, 0, 64},
                      AttentionCase{"some_queries_see_nothing", 1, 80, 70, 2, 1, 16, 10, 40},
                      AttentionCase{"documents", 2, 150, 150, 2, 1, 16, 0, 0, documents(150, {0, 37, 64, 140})},
                      AttentionCase{"documents_one_past_a_tile", 1, 100, 100, 1, 1, 8, 0, 0, documents(100, {0, 1, 65})},
                      AttentionCase{"document_of_a_later_key", 1, 70, 70, 2, 2, 16, 0, 0, std::vector<std::int32_t>(70, 9)},
                      AttentionCase{"documents_far_along", 1, 66, 200, 2, 1, 8, 1134, 1000, std::vector<std::int32_t>(66, 1090)},
                      AttentionCase{"no_keys", 1, 3, 0, 2, 1, 8}, AttentionCase{"no_queries", 1, 0, 5, 2, 1, 8},
                      AttentionCase{"no_sequences", 0, 4, 4, 2, 1, 8}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(Attention, AgreesWithTheDefinition) {
  const AttentionCase& c = GetParam();
  AttentionValues want = random_values(c);
  const AttentionReference reference(c);
  reference.forward(want);
  reference.backward(want);
  const AttentionRun run(c, want, 2);
  const AttentionValues got = run.results();
  EXPECT_LE(relative_error(got.out, want.out), fp32_bound);
  EXPECT_LE(relative_error(got.d_q, want.d_q), fp32_bound);
  EXPECT_LE(relative_error(got.d_k, want.d_k), fp32_bound);
  EXPECT_LE(relative_error(got.d_v, want.d_v), fp32_bound);
  ASSERT_EQ(got.lse.size(), want.lse.size());
  for (std::size_t i = 0; i < got.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(got.lse[i], want.lse[i]) << i;
    } else {
      EXPECT_NEAR(got.lse[i], want.lse[i], 1e-5) << i;
    }
  }
  EXPECT_TRUE(run.padding_untouched());
  EXPECT_TRUE(AttentionRun(c, want, 2).same_bits(run));
  EXPECT_TRUE(AttentionRun(c, want, 1).same_bits(run));
}

// The gradient of Σ d_out · out by central differences of the reference, for the three inputs.
TEST(AttentionGradient, AgreesWithNumericGradients) {
  const AttentionCase c{"small", 1, 9, 9, 2, 1, 4, 0, 0, documents(9, {0, 5})};
  const AttentionValues values = random_values(c);
  const AttentionReference reference(c);
  const auto numeric = [&](std::vector<double> AttentionValues::* input) {
    return numeric_gradient(values.*input, [&](const std::vector<double>& at) {
      AttentionValues moved = values;
      moved.*input = at;
      reference.forward(moved);
      return dot(moved.out, values.d_out);
    });
  };
  const AttentionValues got = AttentionRun(c, values, 2).results();
  EXPECT_LE(relative_error(got.d_q, numeric(&AttentionValues::q)), fp32_bound);
  EXPECT_LE(relative_error(got.d_k, numeric(&AttentionValues::k)), fp32_bound);
  EXPECT_LE(relative_error(got.d_v, numeric(&AttentionValues::v)), fp32_bound);
}

TEST(AttentionEdges, SharpScoresStayAccurate) {
  const AttentionCase c{"sharp", 1, 130, 130, 2, 2, 16};
  AttentionValues want = random_values(c, 3.0f);  // scores of a spread of 9: a few probabilities near 1, most near 0
  const AttentionReference reference(c);
  reference.forward(want);
  reference.backward(want);
  const AttentionValues got = AttentionRun(c, want, 2).results();
  EXPECT_LE(relative_error(got.out, want.out), fp32_bound);
  EXPECT_LE(relative_error(got.d_q, want.d_q), fp32_bound);
  EXPECT_LE(relative_error(got.d_k, want.d_k), fp32_bound);
}

TEST(AttentionEdges, NotANumberInAQueryReachesItsOutputAndNoOther) {
  const AttentionCase c{"nan", 1, 70, 70, 1, 1, 8};
  AttentionValues values = random_values(c);
  values.q[66 * 8 + 3] = std::numeric_limits<double>::quiet_NaN();
  const AttentionValues got = AttentionRun(c, values, 2).results();
  for (std::size_t i = 0; i < 70; ++i) EXPECT_EQ(std::isnan(got.out[i * 8]), i == 66) << i;
}

TEST(AttentionEdges, RefusesHeadsThatAreTooWideOrDoNotDivide) {
  AttentionShape shape = AttentionCase{"wide", 1, 1, 1, 1, 1, 258}.shape();
  Array values(600, 0.0f);
  const auto forward = [&] {
    cpu::attention_forward(shape, values.flat(), values.flat(), values.flat(), values.flat(), values.flat(), Tensor(), nullptr);
  };
  try {
    forward();
    FAIL() << "a head of 258 was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
  }
  shape = AttentionCase{"heads", 1, 1, 1, 3, 2, 8}.shape();
  EXPECT_THROW(forward(), Error);
}

TEST(AttentionGolden, GroupedCausalAttentionAgreesWithPyTorch) {
  const ThreadsScope threads(2);
  const Golden golden("attention");
  constexpr std::int64_t tokens = 70, heads = 4, kv_heads = 2, width = 8;
  AttentionShape shape;
  shape.batch = 1, shape.query_length = shape.key_length = tokens, shape.heads = heads, shape.kv_heads = kv_heads, shape.head_dim = width;
  shape.query_stride = shape.out_stride = heads * width, shape.key_stride = kv_heads * width;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(width));
  Array q = golden.array("q"), k = golden.array("k"), v = golden.array("v"), d_out = golden.array("d_out");
  Array out(q.size()), lse(heads * tokens), d_q(q.size()), d_k(k.size()), d_v(v.size());
  const Workspace workspace(cpu::attention_backward_workspace(shape, DType::f32, false));
  cpu::attention_forward(shape, out.flat(), lse.flat(), q.flat(), k.flat(), v.flat(), Tensor(), nullptr);
  cpu::attention_backward(shape, d_q.flat(), d_k.flat(), d_v.flat(), d_out.flat(), q.flat(), k.flat(), v.flat(), out.flat(), lse.flat(),
                          Tensor(), workspace.data());
  EXPECT_LE(relative_error(out, golden.want("out")), fp32_bound);
  EXPECT_LE(relative_error(lse, golden.want("lse")), fp32_bound);
  EXPECT_LE(relative_error(d_q, golden.want("d_q")), fp32_bound);
  EXPECT_LE(relative_error(d_k, golden.want("d_k")), fp32_bound);
  EXPECT_LE(relative_error(d_v, golden.want("d_v")), fp32_bound);
}

}  // namespace
}  // namespace baleen::ops::testing
