#include "ops/elementwise.h"

#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

TEST(Add, AddsElementsAlsoInPlace) {
  for (const std::int64_t count : {0, 1, 7, 8, 65, 30'011}) {
    const ThreadsScope threads(2);
    Array a = Array::normal(1, count), b = Array::normal(2, count), out(count);
    cpu::add(out.flat(), a.flat(), b.flat());
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(out[i], a[i] + b[i]) << i;
    cpu::add(a.flat(), a.flat(), b.flat());
    EXPECT_TRUE(a.same_bits(out)) << count;
  }
}

TEST(Add, RefusesUnequalShapes) {
  Array a(4), b(5);
  EXPECT_THROW(cpu::add(a.flat(), a.flat(), b.flat()), Error);
}

TEST(Add, RoundsTheSumOfHalvesOnce) {
  for (const std::int64_t count : {1, 9, 20'011}) {
    const HalfArray a0(Array::normal(1, count)), b(Array::normal(2, count));
    HalfArray a = a0, other = b, out(count);
    cpu::add(out.flat(), a.flat(), other.flat());
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(out[i].bits, to_bfloat16(to_float(a0[i]) + to_float(b[i])).bits) << i;
    cpu::add(a.flat(), a.flat(), other.flat());
    EXPECT_TRUE(a.same_bits(out));
  }
}

TEST(Convert, IsBaseDtypesRoundingForEveryKindOfNumber) {
  std::vector<std::uint32_t> patterns;
  for (std::uint32_t upper = 0; upper < 0x10000; upper += 7)  // every exponent and sign, and ties and their neighbours
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) patterns.push_back(upper << 16 | lower);
  for (const std::uint32_t pattern : {0x7f800000u, 0xff800000u, 0x7f800001u, 0x7fffffffu, 0xffffffffu, 0x7f7fffffu, 0x00000001u})
    patterns.push_back(pattern);
  Array in(static_cast<std::int64_t>(patterns.size())), wide(in.size());
  for (std::int64_t i = 0; i < in.size(); ++i) in[i] = std::bit_cast<float>(patterns[static_cast<std::size_t>(i)]);
  HalfArray out(in.size());
  cpu::convert(out.flat(), in.flat());
  for (std::int64_t i = 0; i < in.size(); ++i)
    ASSERT_EQ(out[i].bits, to_bfloat16(in[i]).bits) << std::hex << patterns[static_cast<std::size_t>(i)];
  cpu::convert(wide.flat(), out.flat());
  EXPECT_TRUE(wide.same_bits(out.floats()));
}

}  // namespace
}  // namespace baleen::ops::testing
