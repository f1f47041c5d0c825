// States that come and go in pieces are updated as if they had stayed.
#include "optim/offloaded_states.h"

#include <gtest/gtest.h>

#include "optim/adamw_optimizer.h"

namespace baleen {
namespace {

std::vector<UnitDescription> units() {
  return {{"a", {{"a.weight", {70, 10}}, {"a.bias", {9}}}}, {"b", {{"b.weight", {300}}}}};
}

TEST(OffloadedStates, PiecesCoverEveryElementOnceAndReturn) {
  const auto device = create_cpu_device();
  for (const DType state : {DType::f32, DType::bf16}) {
    UnitStorage storage(*device, units(), StorageOptions{.compute = DType::bf16, .state = state});
    const auto stream = device->create_stream();
    OffloadedStates offloaded(*device, storage, 128);
    int pieces = 0;
    for (int pass = 1; pass <= 2; ++pass)
      offloaded.for_each(*stream, [&](const StatesPiece& piece) {
        ++pieces;
        ASSERT_LE(piece.range.size(), 128u);
        EXPECT_NE(piece.exp_avg.data(), storage.exp_avg(piece.unit).rows(static_cast<std::int64_t>(piece.range.begin), 1).data());
        for (std::int64_t i = 0; i < piece.exp_avg.elements(); ++i) {
          const auto element = static_cast<float>(piece.unit + 2 * (piece.range.begin + static_cast<std::size_t>(i)) % 128);
          const auto add = [&](const Tensor& tensor, float value) {
            if (state == DType::f32)
              tensor.as<float>()[i] += value;
            else
              tensor.as<BFloat16>()[i] = to_bfloat16(to_float(tensor.as<BFloat16>()[i]) + value);
          };
          add(piece.exp_avg, element);
          add(piece.exp_avg_sq, 1);
        }
      });
    EXPECT_EQ(pieces, 2 * (7 + 3));
    for (int unit = 0; unit < 2; ++unit)
      for (std::int64_t i = 0; i < storage.exp_avg(unit).elements(); ++i) {
        const auto value = [&](const Tensor& tensor) {
          return state == DType::f32 ? tensor.as<float>()[i] : to_float(tensor.as<BFloat16>()[i]);
        };
        ASSERT_EQ(value(storage.exp_avg(unit)), 2 * static_cast<float>(unit + 2 * i % 128)) << unit << ' ' << i;
        ASSERT_EQ(value(storage.exp_avg_sq(unit)), 2.0f);
      }
  }
}

}  // namespace
}  // namespace baleen
