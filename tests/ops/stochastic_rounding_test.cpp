// AdamW over bf16 master weights and moments, and over fp32 ones with bf16 compute weights.
#include "ops/adamw.h"
#include "ops/support.h"
#include "ops/targets.h"

namespace baleen::ops::testing {
namespace {

constexpr StochasticRounding rounding{.seed = 7, .key = 0x123456789abcdef0u, .first = 0};
constexpr AdamWConstants constants{.beta1 = 0.8f, .beta2 = 0.97f, .eps = 1e-3f, .weight_decay = 0.2f};

Array scalars_of(int step) {
  Array scalars(adamw_scalars);
  scalars[adamw_learning_rate] = 0.05f, scalars[adamw_correction1] = 0.488f, scalars[adamw_correction2] = 0.0873f;
  scalars[adamw_gradient_factor] = 0.3f, scalars[adamw_step] = static_cast<float>(step), scalars[adamw_skip] = 0;
  return scalars;
}

// adamw.h's definition, one element at a time.
BFloat16 rounded(float value, const StochasticRounding& how, int step, std::uint64_t tensor, std::int64_t i) {
  const std::uint64_t element = how.first + static_cast<std::uint64_t>(i);
  const std::uint32_t word = Philox(rounding_key(how))(element / 8, 4 * static_cast<std::uint64_t>(step) + tensor)[element % 8 / 2];
  const std::uint32_t random = element % 2 == 0 ? word & 0xffffu : word >> 16;
  return {static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + random) >> 16)};
}

struct HalfState {
  HalfArray master, exp_avg, exp_avg_sq;
  explicit HalfState(std::int64_t count)
      : master(Array::normal(1, count)), exp_avg(Array::normal(3, count, 0.1f)), exp_avg_sq(Array(count, 0.01f)) {}
  bool same_bits(const HalfState& other) const {
    return master.same_bits(other.master) && exp_avg.same_bits(other.exp_avg) && exp_avg_sq.same_bits(other.exp_avg_sq);
  }
  // Elements [begin, end) of a parameter.
  void update(Array& gradients, Array& scalars, std::int64_t begin, std::int64_t end, const AdamWConstants& with = constants) {
    const auto part = [&](const Tensor& whole) { return whole.rows(begin, end - begin); };
    StochasticRounding how = rounding;
    how.first += static_cast<std::uint64_t>(begin);
    cpu::adamw({part(master.flat()), Tensor(), part(gradients.flat()), part(exp_avg.flat()), part(exp_avg_sq.flat())}, scalars.flat(), with,
               how);
  }
};

TEST(StochasticRounding, IsWhatTheHeaderSays) {
  // β = 0 and a factor of 1 leave exp_avg the gradient and exp_avg_sq its square, whatever the instruction set.
  for (const bool portable : {false, true}) {
    const InstructionsScope instructions(portable);
    constexpr std::int64_t count = 3001;
    Array gradients = Array::normal(2, count), scalars = scalars_of(5);
    scalars[adamw_gradient_factor] = 1;
    StochasticRounding how = rounding;
    how.first = 0xfffffff0ull * 8 + 3;  // the counter's lower word wraps inside the slice
    HalfState state(count);
    cpu::adamw({state.master.flat(), Tensor(), gradients.flat(), state.exp_avg.flat(), state.exp_avg_sq.flat()}, scalars.flat(),
               {.beta1 = 0, .beta2 = 0, .eps = 1e-3f, .weight_decay = 0.2f}, how);
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(state.exp_avg[i].bits, rounded(gradients[i], how, 5, stochastic_exp_avg, i).bits) << i << ' ' << portable;
      ASSERT_EQ(state.exp_avg_sq[i].bits, rounded(gradients[i] * gradients[i], how, 5, stochastic_exp_avg_sq, i).bits)
          << i << ' ' << portable;
    }
  }
}

TEST(StochasticRounding, MasterIsTheFp32UpdateRoundedByItsOwnBits) {
  constexpr std::int64_t count = 2000;
  Array gradients = Array::normal(2, count), scalars = scalars_of(9);
  HalfState half(count);
  Array master = half.master.floats(), exp_avg = half.exp_avg.floats(), exp_avg_sq = half.exp_avg_sq.floats();
  half.update(gradients, scalars, 0, count);
  cpu::adamw({master.flat(), Tensor(), gradients.flat(), exp_avg.flat(), exp_avg_sq.flat()}, scalars.flat(), constants, {});
  for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(half.master[i].bits, rounded(master[i], rounding, 9, stochastic_master, i).bits) << i;
}

TEST(StochasticRounding, SlicesAndThreadsDoNotChangeIt) {
  constexpr std::int64_t count = 20'011;
  Array gradients = Array::normal(2, count), scalars = scalars_of(1);
  HalfState whole(count), sliced(count), threaded(count), next_step(count);
  {
    const ThreadsScope threads(1);
    whole.update(gradients, scalars, 0, count);
    std::int64_t begin = 0;
    for (const std::int64_t end : {1, 6, 128, 4100, 20'000, 20'011}) {
      sliced.update(gradients, scalars, begin, end);
      begin = end;
    }
  }
  const ThreadsScope threads(2);
  threaded.update(gradients, scalars, 0, count);
  EXPECT_TRUE(sliced.same_bits(whole));
  EXPECT_TRUE(threaded.same_bits(whole));
  scalars[adamw_step] = 2;
  next_step.update(gradients, scalars, 0, count);
  EXPECT_FALSE(next_step.same_bits(whole));
}

TEST(StochasticRounding, IsExactOnAverage) {
  // 0.3 of the way between two bf16 numbers: the mean over n elements is 0.3 ± √(0.21 / n).
  constexpr std::int64_t count = 65'536;
  Array gradients(count, 1.0f + 0.3f / 128), scalars = scalars_of(3);
  scalars[adamw_gradient_factor] = 1;
  HalfState state(count);
  state.update(gradients, scalars, 0, count, {.beta1 = 0, .beta2 = 0, .eps = 1e-3f, .weight_decay = 0});
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += (static_cast<double>(to_float(state.exp_avg[i])) - 1) * 128;
  EXPECT_NEAR(sum / count, 0.3, 4 * std::sqrt(0.21 / count));
}

TEST(StochasticRounding, KeepsInfinityAndNotANumber) {
  constexpr std::int64_t count = 512;
  Array gradients(count, std::numeric_limits<float>::infinity()), scalars = scalars_of(1);
  for (std::int64_t i = 0; i < count; i += 2) gradients[i] = std::bit_cast<float>(0x7fffffffu);
  HalfState state(count);
  state.update(gradients, scalars, 0, count);
  for (std::int64_t i = 0; i < count; ++i) {
    ASSERT_TRUE(i % 2 == 0 ? std::isnan(to_float(state.exp_avg[i])) : std::isinf(to_float(state.exp_avg[i]))) << i;
    ASSERT_TRUE(std::isnan(to_float(state.master[i]))) << i;  // infinity over infinity
  }
}

TEST(AdamW, ComputeWeightsAreTheMasterRoundedToNearest) {
  for (const std::int64_t count : {1, 600, 20'011}) {
    const ThreadsScope threads(2);
    Array gradients = Array::normal(2, count), scalars = scalars_of(1);
    struct State {
      Array master, exp_avg, exp_avg_sq;
    } with{Array::normal(1, count), Array(count, 0.1f), Array(count, 0.2f)}, without = with;
    HalfArray weights(count), half_weights(count);
    cpu::adamw({with.master.flat(), weights.flat(), gradients.flat(), with.exp_avg.flat(), with.exp_avg_sq.flat()}, scalars.flat(),
               constants, rounding);
    cpu::adamw({without.master.flat(), Tensor(), gradients.flat(), without.exp_avg.flat(), without.exp_avg_sq.flat()}, scalars.flat(),
               constants, rounding);
    EXPECT_TRUE(with.master.same_bits(without.master) && with.exp_avg.same_bits(without.exp_avg));
    EXPECT_TRUE(weights.same_bits(HalfArray(with.master)));
    // bf16 moments beside an fp32 master; and compute weights beside a bf16 master are that master.
    HalfState half(count);
    Array master = half.master.floats();
    cpu::adamw({master.flat(), weights.flat(), gradients.flat(), half.exp_avg.flat(), half.exp_avg_sq.flat()}, scalars.flat(), constants,
               rounding);
    EXPECT_TRUE(weights.same_bits(HalfArray(master)));
    HalfState again(count);
    cpu::adamw({again.master.flat(), half_weights.flat(), gradients.flat(), again.exp_avg.flat(), again.exp_avg_sq.flat()}, scalars.flat(),
               constants, rounding);
    EXPECT_TRUE(half_weights.same_bits(again.master));
    EXPECT_TRUE(again.exp_avg.same_bits(half.exp_avg));
  }
}

TEST(AdamW, RefusesMomentsOfTwoDtypes) {
  HalfState half(8);
  Array exp_avg(8, 0.0f), gradients(8, 0.0f), scalars = scalars_of(1);
  EXPECT_THROW(cpu::adamw({half.master.flat(), Tensor(), gradients.flat(), exp_avg.flat(), half.exp_avg_sq.flat()}, scalars.flat(),
                          constants, rounding),
               Error);
}

}  // namespace
}  // namespace baleen::ops::testing
