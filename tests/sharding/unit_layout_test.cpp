#include "sharding/unit_layout.h"

#include <gtest/gtest.h>

#include "sharding/unit_storage.h"

namespace baleen {
namespace {

UnitDescription unit() {
  return {"block", {{"a", {3, 5}}, {"frozen", {7}, Initializer::ones, 0, false}, {"b", {128}}, {"c", {129}}}};
}

TEST(UnitLayout, ParametersStartAtMultiplesOf128AndFrozenOnesComeLast) {
  const UnitLayout layout(unit(), 3);
  EXPECT_EQ(layout.offset(0), 0u);
  EXPECT_EQ(layout.offset(2), 128u);
  EXPECT_EQ(layout.offset(3), 256u);
  EXPECT_EQ(layout.trainable_elements(), 768u);  // 512 rounded up to 3 · 128
  EXPECT_EQ(layout.offset(1), 768u);
  EXPECT_EQ(layout.elements(), 768u + 384u);
  std::vector<std::size_t> gaps;
  for (const SliceRange gap : layout.trainable_gaps()) gaps.insert(gaps.end(), {gap.begin, gap.end});
  EXPECT_EQ(gaps, (std::vector<std::size_t>{15, 128, 385, 512, 512, 768}));
}

TEST(UnitLayout, SlicesCoverTheTrainablePrefixOnce) {
  for (int shards = 1; shards <= 16; ++shards) {
    const UnitLayout layout(unit(), shards);
    std::size_t end = 0;
    for (int shard = 0; shard < shards; ++shard) {
      EXPECT_EQ(layout.slice(shard).begin, end);
      EXPECT_EQ(layout.slice(shard).size() % slice_granularity, 0u);
      EXPECT_EQ(layout.slice(shard).size(), layout.slice(0).size());  // all equal: collectives need no remainders
      end = layout.slice(shard).end;
    }
    EXPECT_EQ(end, layout.trainable_elements());
  }
}

TEST(UnitStorage, InitialValuesDependOnNameAndIndexAlone) {
  const auto device = create_cpu_device();
  UnitStorage one(*device, {unit()}, 1, StorageKind::training),
      four(*device, {{"other", {{"x", {9, 9}}}}, unit()}, 4, StorageKind::training);
  one.initialize_weights(5);
  four.initialize_weights(5);
  for (const char* name : {"a", "b", "c", "frozen"}) {
    const Tensor x = one.weight(one.find(name)), y = four.weight(four.find(name));
    for (std::int64_t i = 0; i < x.elements(); ++i) EXPECT_EQ(x.as<float>()[i], y.as<float>()[i]) << name << " " << i;
  }
  EXPECT_NE(one.weight(one.find("b")).as<float>()[0], one.weight(one.find("c")).as<float>()[0]);
  EXPECT_EQ(one.weight(one.find("frozen")).as<float>()[3], 1.0f);
  four.initialize_weights(6);
  EXPECT_NE(one.weight(one.find("b")).as<float>()[0], four.weight(four.find("b")).as<float>()[0]);
}

TEST(UnitStorage, InitialValuesAreNormal) {
  const auto device = create_cpu_device();
  UnitStorage storage(*device, {{"unit", {{"w", {400, 500}, Initializer::normal, 0.02f}}}}, 1, StorageKind::inference);
  storage.initialize_weights(1);
  const Tensor w = storage.weight(storage.find("w"));
  double sum = 0, squares = 0, fourth = 0;
  for (std::int64_t i = 0; i < w.elements(); ++i) {
    const double v = w.as<float>()[i] / 0.02;
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
  }
  const auto n = static_cast<double>(w.elements());
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(fourth / n, 3, 0.1);
}

}  // namespace
}  // namespace baleen
