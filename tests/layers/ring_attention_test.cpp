// Ring attention over thread ranks against the attention operation on one rank.
#include "layers/ring_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>

#include "base/error.h"
#include "base/rng.h"
#include "comm/thread_ranks.h"
#include "device/device.h"
#include "layers/zigzag.h"
#include "ops/threads.h"

namespace baleen {
namespace {

using testing::all_ranks;
using testing::run_ranks;

using Floats = std::vector<float>;

struct Case {
  int ranks;
  std::int64_t batch, length, heads, kv_heads, head_dim;
  std::int64_t qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t columns() const { return heads * head_dim; }
};

// Rows of a whole array, or those that a rank holds, in a dtype.
class Rows {
 public:
  Rows(DType dtype, std::int64_t rows, std::int64_t columns)
      : dtype_(dtype),
        rows_(rows),
        columns_(columns),
        bytes_(static_cast<std::size_t>(rows * columns) * dtype_bytes(dtype), std::byte{0xff}) {}
  Rows(DType dtype, const Floats& all, std::int64_t columns, const std::vector<std::int64_t>& held)
      : Rows(dtype, static_cast<std::int64_t>(held.size()), columns) {
    for (std::size_t row = 0; row < held.size(); ++row)
      for (std::int64_t i = 0; i < columns; ++i)
        set(static_cast<std::int64_t>(row) * columns + i, all[static_cast<std::size_t>(held[row] * columns + i)]);
  }
  // From column `first` on, with the rows `columns` apart.
  Tensor at(std::int64_t first, std::int64_t heads, std::int64_t head_dim) {
    return Tensor(bytes_.data() + static_cast<std::size_t>(first) * dtype_bytes(dtype_), dtype_, {rows_, heads, head_dim});
  }
  void put_into(Floats& all, const std::vector<std::int64_t>& held) const {
    for (std::size_t row = 0; row < held.size(); ++row)
      for (std::int64_t i = 0; i < columns_; ++i)
        all[static_cast<std::size_t>(held[row] * columns_ + i)] = get(static_cast<std::int64_t>(row) * columns_ + i);
  }

 private:
  void set(std::int64_t i, float value) {
    if (dtype_ == DType::f32)
      reinterpret_cast<float*>(bytes_.data())[i] = value;
    else
      reinterpret_cast<BFloat16*>(bytes_.data())[i] = to_bfloat16(value);
  }
  float get(std::int64_t i) const {
    return dtype_ == DType::f32 ? reinterpret_cast<const float*>(bytes_.data())[i]
                                : to_float(reinterpret_cast<const BFloat16*>(bytes_.data())[i]);
  }

  DType dtype_;
  std::int64_t rows_, columns_;
  std::vector<std::byte> bytes_;
};

// A scratch of exactly what a dry run asks for, poisoned.
class Scratch {
 public:
  template <class Body>
  explicit Scratch(const Body& dry_run) {
    Arena measured;
    const auto stream = device_->create_measuring_stream();
    ops::Context context{*stream, measured};
    dry_run(context);
    peak_ = measured.peak();
    names_ = measured.peak_by_name();
    memory_ = device_->allocate("scratch", std::max<std::size_t>(peak_, 1));
    std::fill_n(memory_.as<std::byte>(), memory_.bytes(), std::byte{0xff});
    arena_.bind(memory_.data(), memory_.bytes());
  }
  ops::Context context() { return {*stream_, arena_}; }
  std::size_t peak() const { return peak_; }
  const std::map<std::string, std::size_t>& names() const { return names_; }

 private:
  std::unique_ptr<Device> device_ = create_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->create_stream();
  Buffer memory_;
  Arena arena_;
  std::size_t peak_ = 0;
  std::map<std::string, std::size_t> names_;
};

Floats random(std::uint64_t key, std::int64_t count, DType dtype) {
  Floats values(static_cast<std::size_t>(count));
  const Philox philox(derive_key(key, "tests/layers/ring_attention"));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = dtype == DType::f32 ? normal_at(philox, i) : to_float(to_bfloat16(normal_at(philox, i)));
  return values;
}

double relative_error(const Floats& got, const Floats& want) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::isfinite(difference) ? std::sqrt(difference / norm) : std::numeric_limits<double>::infinity();
}

struct Inputs {
  Floats qkv, d_out;
};
struct Results {
  Floats out, lse, d_qkv;                                              // of the whole batch
  std::uint64_t forward_bytes = 0, key_bytes = 0, gradient_bytes = 0;  // sent by rank 0: forward; forward and backward on each communicator
  std::size_t scratch = 0;
};

ops::AttentionShape shape_of(const Case& c) {
  ops::AttentionShape shape;
  shape.batch = c.batch;
  shape.query_length = shape.key_length = c.length / c.ranks;
  shape.heads = c.heads;
  shape.kv_heads = c.kv_heads;
  shape.head_dim = c.head_dim;
  shape.query_stride = shape.key_stride = c.qkv_columns();
  shape.out_stride = c.columns();
  shape.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  return shape;
}

// One rank's part, forward and backward.
void run_rank(World& world, const Case& c, DType dtype, const Inputs& inputs, Results& results, std::mutex& mutex) {
  ops::set_threads(1);
  const auto keys = world.create_communicator(all_ranks(c.ranks), "cp"), gradients = world.create_communicator(all_ranks(c.ranks), "cp");
  const RingAttention ring(*keys, *gradients);
  const std::int64_t local = c.length / c.ranks, tokens = c.batch * local;
  const std::vector<std::int64_t> held = ZigZag(c.ranks, world.rank(), c.length).rows(c.batch);
  Rows qkv(dtype, inputs.qkv, c.qkv_columns(), held), d_out(dtype, inputs.d_out, c.columns(), held);
  Rows out(dtype, tokens, c.columns()), d_qkv(dtype, tokens, c.qkv_columns()), lse(DType::f32, c.batch * c.heads, local);
  const ops::AttentionShape shape = shape_of(c);
  const auto q_of = [&](Rows& rows) { return rows.at(0, c.heads, c.head_dim); };
  const auto k_of = [&](Rows& rows) { return rows.at(c.columns(), c.kv_heads, c.head_dim); };
  const auto v_of = [&](Rows& rows) { return rows.at(c.columns() + c.kv_heads * c.head_dim, c.kv_heads, c.head_dim); };
  const auto forward = [&](ops::Context context) {
    ring.forward(context, shape, q_of(out), lse.at(0, 1, local), q_of(qkv), k_of(qkv), v_of(qkv));
  };
  const auto backward = [&](ops::Context context) {
    ring.backward(context, shape, q_of(d_qkv), k_of(d_qkv), v_of(d_qkv), q_of(d_out), q_of(qkv), k_of(qkv), v_of(qkv), q_of(out),
                  lse.at(0, 1, local));
  };
  Scratch scratch([&](ops::Context& context) {
    forward(context);
    backward(context);
  });
  ASSERT_EQ(keys->bytes_sent() + gradients->bytes_sent(), 0u);  // a dry run sends nothing
  forward(scratch.context());
  const std::uint64_t forward_bytes = keys->bytes_sent();
  backward(scratch.context());
  const std::lock_guard lock(mutex);
  out.put_into(results.out, held);
  d_qkv.put_into(results.d_qkv, held);
  std::vector<std::int64_t> lse_columns;  // [B·H, T] seen as rows of one element
  for (std::int64_t row = 0; row < c.batch * c.heads; ++row)
    for (std::int64_t i = 0; i < local; ++i) lse_columns.push_back(row * c.length + ZigZag(c.ranks, world.rank(), c.length).position(i));
  Rows flat(DType::f32, c.batch * c.heads * local, 1);
  std::memcpy(flat.at(0, 1, 1).data(), lse.at(0, 1, local).data(), lse.at(0, 1, local).bytes());
  flat.put_into(results.lse, lse_columns);
  if (world.rank() != 0) return;
  results.forward_bytes = forward_bytes;
  results.key_bytes = keys->bytes_sent();
  results.gradient_bytes = gradients->bytes_sent();
  results.scratch = scratch.peak();
}

Results run_ring(const Case& c, DType dtype, const Inputs& inputs) {
  Results results;
  const auto tokens = static_cast<std::size_t>(c.batch * c.length);
  results.out.assign(tokens * static_cast<std::size_t>(c.columns()), NAN);
  results.d_qkv.assign(tokens * static_cast<std::size_t>(c.qkv_columns()), NAN);
  results.lse.assign(tokens * static_cast<std::size_t>(c.heads), NAN);
  std::mutex mutex;
  run_ranks(c.ranks, [&](World& world) { run_rank(world, c, dtype, inputs, results, mutex); });
  return results;
}

Inputs random_inputs(const Case& c) {
  return {random(1, c.batch * c.length * c.qkv_columns(), DType::bf16), random(2, c.batch * c.length * c.columns(), DType::bf16)};
}

class RingAttentionCases : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, RingAttentionCases,
                         ::testing::Values(Case{1, 2, 10, 2, 1, 8}, Case{2, 1, 4, 1, 1, 8}, Case{2, 2, 136, 4, 2, 16},
                                           Case{3, 2, 48, 3, 3, 24}, Case{4, 3, 160, 4, 1, 32}, Case{4, 1, 8, 2, 2, 5},
                                           Case{5, 1, 130, 2, 1, 64}),
                         [](const auto& instance) {
                           const Case& c = instance.param;
                           return "cp" + std::to_string(c.ranks) + "_B" + std::to_string(c.batch) + "_T" + std::to_string(c.length) + "_H" +
                                  std::to_string(c.heads) + "_" + std::to_string(c.kv_heads) + "_D" + std::to_string(c.head_dim);
                         });

TEST_P(RingAttentionCases, AgreesWithOneRank) {
  const Case& c = GetParam();
  Case one = c;
  one.ranks = 1;
  const Inputs inputs = random_inputs(c);
  const Results want = run_ring(one, DType::f32, inputs), got = run_ring(c, DType::f32, inputs);
  EXPECT_LE(relative_error(got.out, want.out), 1e-5);
  EXPECT_LE(relative_error(got.lse, want.lse), 1e-5);
  EXPECT_LE(relative_error(got.d_qkv, want.d_qkv), 1e-5);
  // Inside twice the error of one rank in bf16. (The inputs are the same numbers in both dtypes.)
  const Results half_want = run_ring(one, DType::bf16, inputs), half_got = run_ring(c, DType::bf16, inputs);
  EXPECT_LE(relative_error(half_got.out, want.out), 2 * relative_error(half_want.out, want.out));
  EXPECT_LE(relative_error(half_got.lse, want.lse), 1e-5);
  EXPECT_LE(relative_error(half_got.d_qkv, want.d_qkv), 2 * relative_error(half_want.d_qkv, want.d_qkv));
}

// The gradients of queries, of keys and of values each, which the sum above could hide.
TEST(RingAttention, EachGradientAgreesWithOneRank) {
  const Case c{3, 2, 54, 4, 2, 16};
  Case one = c;
  one.ranks = 1;
  const Inputs inputs = random_inputs(c);
  const Results want = run_ring(one, DType::f32, inputs), got = run_ring(c, DType::f32, inputs);
  const std::int64_t q_end = c.columns(), k_end = q_end + c.kv_heads * c.head_dim;
  for (const auto& [begin, end] : {std::pair{std::int64_t{0}, q_end}, std::pair{q_end, k_end}, std::pair{k_end, c.qkv_columns()}}) {
    Floats want_part, got_part;
    for (std::int64_t token = 0; token < c.batch * c.length; ++token)
      for (std::int64_t i = begin; i < end; ++i) {
        want_part.push_back(want.d_qkv[static_cast<std::size_t>(token * c.qkv_columns() + i)]);
        got_part.push_back(got.d_qkv[static_cast<std::size_t>(token * c.qkv_columns() + i)]);
      }
    EXPECT_LE(relative_error(got_part, want_part), 1e-5) << "columns from " << begin;
  }
}

TEST(RingAttention, GivesTheSameBitsTwice) {
  const Case c{3, 1, 48, 2, 1, 16};
  const Inputs inputs = random_inputs(c);
  const Results a = run_ring(c, DType::bf16, inputs), b = run_ring(c, DType::bf16, inputs);
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.d_qkv, b.d_qkv);
}

// The formulas of docs/parallelism.md.
TEST(RingAttention, BytesOnTheWire) {
  for (const int ranks : {1, 2, 3, 4})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Case c{ranks, 2, 48, 4, 2, 8};
      const Results results = run_ring(c, dtype, random_inputs(c));
      const auto elements = static_cast<std::uint64_t>((ranks - 1) * 2 * c.batch * (c.length / ranks) * c.kv_heads * c.head_dim);
      EXPECT_EQ(results.forward_bytes, elements * dtype_bytes(dtype));
      EXPECT_EQ(results.key_bytes, 2 * elements * dtype_bytes(dtype));
      EXPECT_EQ(results.gradient_bytes, elements * 4);
    }
}

// The scratch of a rank, by a dry run, falls as 1/cp. (Without a ring attention has little: there is nothing to travel.)
TEST(RingAttention, MemoryOfARank) {
  const auto scratch = [](int ranks) {
    std::size_t peak = 0;
    run_ranks(ranks, [&](World& world) {
      const Case c{ranks, 1, 16384, 32, 8, 64};
      const auto axis = world.create_communicator(all_ranks(ranks), "cp");
      const RingAttention ring(*axis, *axis);
      const ops::AttentionShape shape = shape_of(c);
      ops::set_threads(1);
      Scratch measured([&](ops::Context& context) {
        const Tensor t(nullptr, DType::bf16, {c.length / ranks, c.heads, c.head_dim});
        const Tensor kv(nullptr, DType::bf16, {c.length / ranks, c.kv_heads, c.head_dim});
        const Tensor lse(nullptr, DType::f32, {1, c.heads, c.length / ranks});
        ring.forward(context, shape, t, lse, t, kv, kv);
        ring.backward(context, shape, t, kv, kv, t, t, kv, kv, t, lse);
      });
      if (world.rank() == ranks - 1) peak = measured.peak();
    });
    return static_cast<double>(peak);
  };
  const double two = scratch(2);
  std::printf("scratch of a rank at cp = 2, 4, 8: %.1f, %.1f, %.1f MB\n", two / 1e6, scratch(4) / 1e6, scratch(8) / 1e6);
  EXPECT_LE(scratch(4), 0.51 * two);
  EXPECT_LE(scratch(8), 0.26 * two);
}

TEST(RingAttention, RefusesKeysOfAnotherLength) {
  const Case c{2, 1, 8, 1, 1, 8};
  EXPECT_THROW(run_ranks(2,
                         [&](World& world) {
                           const auto axis = world.create_communicator(all_ranks(2), "cp");
                           ops::AttentionShape shape = shape_of(c);
                           shape.key_length = 3;
                           Rows rows(DType::f32, 8, c.qkv_columns());
                           Scratch scratch([](ops::Context&) {});
                           ops::Context context = scratch.context();
                           const Tensor t = rows.at(0, 1, 8);
                           RingAttention(*axis, *axis).forward(context, shape, t, t, t, t, t);
                         }),
               Error);
}

TEST(ZigZag, EveryTokenHasOneRankAndEveryRankAsManyPairs) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    const std::int64_t batch = 2, length = 4 * ranks * 3;
    std::vector<int> holders(static_cast<std::size_t>(batch * length));
    std::int64_t pairs_of_the_first = -1;
    for (int rank = 0; rank < ranks; ++rank) {
      const ZigZag held(ranks, rank, length);
      const auto rows = held.rows(batch);
      const auto positions = held.positions(batch);
      ASSERT_EQ(rows.size(), static_cast<std::size_t>(batch * length / ranks));
      ASSERT_EQ(positions.size(), rows.size());
      std::int64_t pairs = 0;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        ++holders[static_cast<std::size_t>(rows[i])];
        ASSERT_EQ(positions[i], rows[i] % length);
        pairs += positions[i] + 1;
      }
      if (pairs_of_the_first < 0) pairs_of_the_first = pairs;
      ASSERT_EQ(pairs, pairs_of_the_first) << "rank " << rank << " of " << ranks;
    }
    for (const int count : holders) ASSERT_EQ(count, 1);
  }
}

TEST(ZigZag, PositionsByHand) {
  EXPECT_EQ(ZigZag(2, 0, 8).positions(1), (std::vector<std::int32_t>{0, 1, 6, 7}));
  EXPECT_EQ(ZigZag(2, 1, 8).positions(2), (std::vector<std::int32_t>{2, 3, 4, 5, 2, 3, 4, 5}));
  EXPECT_EQ(ZigZag(2, 1, 8).rows(2), (std::vector<std::int64_t>{2, 3, 4, 5, 10, 11, 12, 13}));
  EXPECT_EQ(ZigZag(1, 0, 3).positions(1), (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(ZigZag, RefusesSequencesThatDoNotDivide) {
  try {
    ZigZag(3, 0, 10);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_EQ(error.what_is_wrong(), "a sequence of 10 tokens does not divide into 6 equal blocks for 3 context-parallel ranks");
  }
}

}  // namespace
}  // namespace baleen
