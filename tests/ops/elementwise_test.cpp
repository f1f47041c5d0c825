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

}  // namespace
}  // namespace baleen::ops::testing
