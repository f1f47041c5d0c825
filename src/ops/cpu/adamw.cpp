#include "ops/adamw.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/adamw.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
void PhiloxWords(std::uint64_t key, std::uint64_t first, std::uint64_t high, std::size_t blocks, std::uint32_t* words) {
  for (std::size_t i = 0; i < blocks; ++i) std::ranges::copy(Philox(key)(first + i, high), words + 4 * i);
}
#else
// Philox of base/rng.h, a counter a lane: words[4 · i + j] is word j of block `first + i`, for i in [0, blocks) and on to whole vectors.
void PhiloxWords(std::uint64_t key, std::uint64_t first, std::uint64_t high, std::size_t blocks, std::uint32_t* words) {
  const BitsTag d;
  const std::size_t lanes = hn::Lanes(d);
  // The products' high and low halves, lane by lane.
  const auto multiply = [d](BitsVec a, std::uint32_t by, BitsVec& high_half, BitsVec& low_half) HWY_ATTR {
    const BitsVec factor = hn::Set(d, by);
    const auto even = hn::MulEven(a, factor), odd = hn::MulEven(hn::Reverse2(d, a), factor);
    const BitsVec even_words = hn::BitCast(d, even), odd_words = hn::BitCast(d, odd);
    high_half = hn::OddEven(odd_words, hn::Reverse2(d, even_words));
    low_half = hn::OddEven(hn::Reverse2(d, odd_words), even_words);
  };
  for (std::size_t i = 0; i < blocks; i += lanes) {
    const std::uint64_t low = first + i;
    BitsVec c0 = hn::Add(hn::Iota(d, 0u), hn::Set(d, static_cast<std::uint32_t>(low)));
    const auto carried = hn::Lt(c0, hn::Set(d, static_cast<std::uint32_t>(low)));
    BitsVec c1 = hn::Set(d, static_cast<std::uint32_t>(low >> 32));
    c1 = hn::IfThenElse(carried, hn::Add(c1, hn::Set(d, 1u)), c1);
    BitsVec c2 = hn::Set(d, static_cast<std::uint32_t>(high)), c3 = hn::Set(d, static_cast<std::uint32_t>(high >> 32));
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      BitsVec high0, low0, high1, low1;
      multiply(c0, 0xD2511F53u, high0, low0);
      multiply(c2, 0xCD9E8D57u, high1, low1);
      c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, k0)), c1 = low1;
      c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, k1)), c3 = low0;
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    hn::StoreInterleaved4(c0, c1, c2, c3, d, words + 4 * i);
  }
}
#endif

// Random bits of a run of one tensor's elements, two a word.
constexpr std::size_t random_run = 512;
class RandomBits {
 public:
  void Fill(std::uint64_t key, std::uint64_t high, std::uint64_t element, std::size_t count) {
    offset_ = element % 8;
    HWY_ALIGN std::uint32_t words[most_words];
    const std::size_t blocks = (offset_ + count + 7) / 8;
    PhiloxWords(key, element / 8, high, blocks, words);
    std::memcpy(halves_, words, blocks * 4 * sizeof(std::uint32_t));
  }
  // The vector at the end of a run reads past what Fill made, but inside the array: those lanes are not stored.
  BitsVec At(std::size_t i) const { return hn::PromoteTo(BitsTag(), hn::LoadU(HalfBitsTag(), halves_ + offset_ + i)); }

 private:
  static constexpr std::size_t most_words = random_run / 2 + 4 + std::size_t{4} * HWY_MAX_BYTES / sizeof(std::uint32_t);
  std::size_t offset_ = 0;
  HWY_ALIGN std::uint16_t halves_[2 * most_words] = {};
};

template <class Width>
HWY_INLINE void StoreRounded(FloatVec value, float* to, Width width, const RandomBits&, std::size_t) {
  StoreVec(value, to, width);
}
template <class Width>
HWY_INLINE void StoreRounded(FloatVec value, BFloat16* to, Width width, const RandomBits& bits, std::size_t i) {
  StoreHalfBits(UpperHalves(value, bits.At(i)), to, width);
}

// Elements [begin, begin + count) in fp32: where they are, or in `to`.
HWY_INLINE const float* Widened(const Tensor& values, std::size_t begin, std::size_t count, float* to) {
  if (values.dtype() == DType::f32) return values.as<float>() + begin;
  const BFloat16* const from = values.as<BFloat16>() + begin;
  ForVectors(count, [&](std::size_t i, auto width) HWY_ATTR { hn::Store(LoadVec(from + i, width), FloatTag(), to + i); });
  return to;
}

// Brings the cache line that is read some pages later, whenever i begins one: the processor's own prefetching ends with each page.
template <class T>
HWY_INLINE void PrefetchAhead(const T* values, std::size_t i, std::size_t count) {
  constexpr std::size_t line = 64 / sizeof(T), ahead = 8192 / sizeof(T);
  if (i % line == 0 && i + ahead < count) hwy::Prefetch(values + i + ahead);
}

// scalars as adamw.h describes them; gradients from element `at` on.
template <class Master, class State>
void UpdateElements(Master* master, BFloat16* weights, const Tensor& all_gradients, State* exp_avg, State* exp_avg_sq, std::size_t at,
                    std::size_t count, const float* scalars, const AdamWConstants& constants, std::uint64_t key, std::uint64_t first) {
  const FloatTag d;
  const FloatVec factor = hn::Set(d, scalars[adamw_gradient_factor]);
  const FloatVec beta1 = hn::Set(d, constants.beta1), beta2 = hn::Set(d, constants.beta2);
  const FloatVec one_minus_beta1 = hn::Set(d, 1.0f - constants.beta1), one_minus_beta2 = hn::Set(d, 1.0f - constants.beta2);
  const FloatVec inverse_correction1 = hn::Set(d, 1.0f / scalars[adamw_correction1]);
  const FloatVec inverse_correction2 = hn::Set(d, 1.0f / scalars[adamw_correction2]);
  const FloatVec rate = hn::Set(d, scalars[adamw_learning_rate]), decay = hn::Set(d, constants.weight_decay),
                 eps = hn::Set(d, constants.eps);
  const auto counter_high = [step = static_cast<std::uint64_t>(scalars[adamw_step])](std::uint64_t tensor) { return 4 * step + tensor; };
  const float* const wide_gradients = all_gradients.dtype() == DType::f32 ? all_gradients.as<float>() + at : nullptr;
  RandomBits master_bits, exp_avg_bits, exp_avg_sq_bits;
  HWY_ALIGN float widened[random_run + HWY_MAX_BYTES / sizeof(float)];
  for (std::size_t begin = 0; begin < count; begin += random_run) {
    const std::size_t run = HWY_MIN(random_run, count - begin);
    if constexpr (std::is_same_v<Master, BFloat16>) master_bits.Fill(key, counter_high(stochastic_master), first + begin, run);
    if constexpr (std::is_same_v<State, BFloat16>) {
      exp_avg_bits.Fill(key, counter_high(stochastic_exp_avg), first + begin, run);
      exp_avg_sq_bits.Fill(key, counter_high(stochastic_exp_avg_sq), first + begin, run);
    }
    const float* const gradients = Widened(all_gradients, at + begin, run, widened);
    ForVectors(run, [&](std::size_t j, auto width) HWY_ATTR {
      const std::size_t i = begin + j;
      PrefetchAhead(master, i, count), PrefetchAhead(exp_avg, i, count), PrefetchAhead(exp_avg_sq, i, count);
      if (wide_gradients != nullptr) PrefetchAhead(wide_gradients, i, count);
      const FloatVec g = hn::Mul(factor, LoadVec(gradients + j, width));
      const FloatVec m = Fma(beta1, LoadVec(exp_avg + i, width), hn::Mul(one_minus_beta1, g));
      const FloatVec v = Fma(beta2, LoadVec(exp_avg_sq + i, width), hn::Mul(one_minus_beta2, hn::Mul(g, g)));
      const FloatVec w = LoadVec(master + i, width);
      const FloatVec update = hn::Div(hn::Mul(m, inverse_correction1), hn::Add(hn::Sqrt(hn::Mul(v, inverse_correction2)), eps));
      StoreRounded(m, exp_avg + i, width, exp_avg_bits, j);
      StoreRounded(v, exp_avg_sq + i, width, exp_avg_sq_bits, j);
      StoreRounded(hn::NegMulAdd(rate, Fma(decay, w, update), w), master + i, width, master_bits, j);
      if (weights != nullptr) StoreVec(LoadVec(master + i, width), weights + i, width);
    });
  }
}

void AdamWElements(const AdamWTensors& tensors, std::size_t begin, std::size_t count, const float* scalars, const AdamWConstants& constants,
                   const StochasticRounding& rounding) {
  ForStorage(tensors.master.dtype(), [&](auto master) HWY_ATTR {
    ForStorage(tensors.exp_avg.dtype(), [&](auto state) HWY_ATTR {
      using Master = decltype(master);
      using State = decltype(state);
      UpdateElements(tensors.master.as<Master>() + begin, tensors.weights.defined() ? tensors.weights.as<BFloat16>() + begin : nullptr,
                     tensors.gradients, tensors.exp_avg.as<State>() + begin, tensors.exp_avg_sq.as<State>() + begin, begin, count, scalars,
                     constants, rounding_key(rounding), rounding.first + begin);
    });
  });
}

template <class D>
HWY_INLINE hn::Vec<D> LoadDoubles(D d, const float* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), from));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadDoubles(D d, const BFloat16* from) {
  const hn::Rebind<float, D> df;
  const hn::RebindToUnsigned<decltype(df)> words;
  const hn::Rebind<std::uint16_t, D> halves;
  const auto bits = hn::PromoteTo(words, hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(from)));
  return hn::PromoteTo(d, hn::BitCast(df, hn::ShiftLeft<16>(bits)));
}

// Σ values² in fp64.
template <class T>
double SumOfSquaresOf(const T* values, std::size_t count) {
  const hn::ScalableTag<double> d;
  const std::size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    PrefetchAhead(values, i, count);
    const auto a = LoadDoubles(d, values + i), b = LoadDoubles(d, values + i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < count; ++i) sum += static_cast<double>(ToFloat(values[i])) * ToFloat(values[i]);
  return sum;
}

double SumOfSquares(const Tensor& values, std::int64_t begin, std::int64_t count) {
  double sum = 0;
  ForStorage(values.dtype(),
             [&](auto zero) HWY_ATTR { sum = SumOfSquaresOf(values.as<decltype(zero)>() + begin, static_cast<std::size_t>(count)); });
  return sum;
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(AdamWElements);
HWY_EXPORT(SumOfSquares);

void adamw(const AdamWTensors& tensors, const Tensor& step_scalars, const AdamWConstants& constants, const StochasticRounding& rounding) {
  const auto& [master, weights, gradients, exp_avg, exp_avg_sq] = tensors;
  require_fp32("AdamW", {&step_scalars});
  require_compute_dtype("AdamW", {&master, &gradients, &exp_avg});
  require_dtype("AdamW", exp_avg.dtype(), {&exp_avg_sq});
  require_dtype("AdamW", DType::bf16, {&weights});
  const std::int64_t count = master.elements();
  BALEEN_CHECK(gradients.elements() == count && exp_avg.elements() == count && exp_avg_sq.elements() == count, count, gradients.elements());
  BALEEN_CHECK(!weights.defined() || weights.elements() == count, count, weights.elements());
  BALEEN_CHECK(step_scalars.elements() == adamw_scalars, step_scalars.elements());
  if (step_scalars.as<float>()[adamw_skip] != 0) return;
  parallel_ranges(count, 1024, worthwhile_rows(1), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(AdamWElements)
    (tensors, static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin), step_scalars.as<float>(), constants, rounding);
  });
}

void sum_of_squares(const Tensor& sum, const Tensor& values) {
  require_compute_dtype("sum of squares", {&values});
  BALEEN_CHECK(sum.elements() == 1, sum.elements());
  const std::int64_t count = values.elements();
  // At most 256 blocks of whole kibi-elements: their bounds, and so the order of all additions, follow from the count alone.
  constexpr std::int64_t most_blocks = 256, unit = 1024;
  const std::int64_t block = (count + most_blocks * unit - 1) / (most_blocks * unit) * unit;
  const std::int64_t blocks = count == 0 ? 0 : (count + block - 1) / block;
  std::array<double, most_blocks> partial;
  parallel_ranges(blocks, 1, 8192 / unit, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      partial[static_cast<std::size_t>(i)] = HWY_DYNAMIC_DISPATCH(SumOfSquares)(values, i * block, std::min(block, count - i * block));
  });
  double total = 0;
  for (std::int64_t i = 0; i < blocks; ++i) total += partial[static_cast<std::size_t>(i)];
  sum.as<double>()[0] += total;
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
