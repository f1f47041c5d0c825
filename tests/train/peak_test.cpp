#include "train/peak.h"

#include <gtest/gtest.h>

#include <cmath>

namespace baleen {
namespace {

TEST(Peak, IsThatOfTheMatrixTypeAndTheVariant) {
  EXPECT_DOUBLE_EQ(peak_flops("NVIDIA H200", DType::bf16).value(), 989.4e12);
  EXPECT_DOUBLE_EQ(peak_flops("NVIDIA H200", DType::f32).value(), 66.9e12);
  EXPECT_DOUBLE_EQ(peak_flops("NVIDIA H100 PCIe", DType::bf16).value(), 756.5e12);
  EXPECT_DOUBLE_EQ(peak_flops("NVIDIA H100 80GB HBM3", DType::bf16).value(), 989.4e12);
  EXPECT_EQ(peak_flops("AMD EPYC", DType::f32), std::nullopt);
}

// A figure that a measured baseline would show: 1.5 B parameters at 61,877 tokens/s of 10.1 GFLOP each.
TEST(Peak, UtilisationIsAFractionAndUnknownWithoutAPeak) {
  EXPECT_NEAR(model_flops_utilisation(61'877 * 10.1e9 / 1e12, "NVIDIA H200", DType::bf16), 0.632, 0.001);
  EXPECT_TRUE(std::isnan(model_flops_utilisation(100, "some processor", DType::bf16)));
}

}  // namespace
}  // namespace baleen
