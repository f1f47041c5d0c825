// The arithmetic alone: every lane and every tail element agrees with plain C++ on one element.
#include "comm/ring/reducer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace baleen {
namespace {

// All 2^16 halves are too many pairs; these are the corners of rounding plus a random crowd.
std::vector<float> crowd(std::uint64_t key) {
  std::vector<float> out{0.0f,
                         -0.0f,
                         1.0f,
                         0x1.01p0f,
                         0x1.03p0f,
                         0x1.8p-130f,
                         std::numeric_limits<float>::max(),
                         std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity()};
  for (std::uint64_t index = 0; index < 4000; ++index) {
    const float value = std::bit_cast<float>(Philox(key)(index)[0]);
    if (!std::isnan(value)) out.push_back(value);
  }
  return out;
}

TEST(Reducer, BfloatRoundingIsThatOfOneElement) {
  const auto values = crowd(1);
  const Reducer reducer = reducer_for(DType::bf16, ReduceOp::sum);
  EXPECT_EQ(reducer.wire_bytes, 4u);
  const std::vector<BFloat16> zeros(values.size(), BFloat16{});
  std::vector<BFloat16> result(values.size());
  reducer.finish(result.data(), values.data(), zeros.data(), values.size(), 2);
  for (std::size_t index = 0; index < values.size(); ++index)
    EXPECT_EQ(result[index].bits, to_bfloat16(values[index] + 0.0f).bits) << values[index];
}

TEST(Reducer, SumsMaximaAndMinimaAtEveryLengthAndOffset) {
  const auto a = crowd(2), b = crowd(3);
  for (const std::size_t length : {0u, 1u, 3u, 7u, 8u, 15u, 16u, 17u, 31u, 33u, 100u})
    for (const std::size_t offset : {0u, 1u, 5u}) {
      std::vector<float> out(length + 1, 42.0f);
      const auto check = [&](ReduceOp op, auto wanted) {
        reducer_for(DType::f32, op).combine(out.data(), a.data() + offset, b.data() + offset, length);
        for (std::size_t index = 0; index < length; ++index) {
          const float want = wanted(a[offset + index], b[offset + index]);
          EXPECT_TRUE(out[index] == want || (std::isnan(out[index]) && std::isnan(want))) << index << " of " << length;
        }
        EXPECT_EQ(out[length], 42.0f) << "wrote past the end";
      };
      check(ReduceOp::sum, [](float x, float y) { return x + y; });
      check(ReduceOp::max, [](float x, float y) { return std::max(x, y); });
      check(ReduceOp::min, [](float x, float y) { return std::min(x, y); });
    }
}

TEST(Reducer, LargeUnsignedNumbersKeepTheirOrder) {
  const std::vector<std::uint64_t> a(9, std::uint64_t{1} << 63), b(9, 5);
  std::vector<std::uint64_t> out(9);
  reducer_for(DType::u64, ReduceOp::max).combine(out.data(), a.data(), b.data(), out.size());
  EXPECT_EQ(out, a);
  reducer_for(DType::u64, ReduceOp::min).combine(out.data(), a.data(), b.data(), out.size());
  EXPECT_EQ(out, b);
}

TEST(Reducer, BytesHaveNoSum) {
  EXPECT_THROW(reducer_for(DType::u8, ReduceOp::sum), Error);
}

}  // namespace
}  // namespace baleen
