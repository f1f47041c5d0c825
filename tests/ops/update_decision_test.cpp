#include "ops/update_decision.h"

#include <limits>

#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

class UpdateDecision : public ::testing::Test {
 protected:
  void decide(double loss_sum, double squares, double limit) {
    cpu::decide_update(scalars.flat(), Tensor(&loss_sum, DType::f64, {1}), Tensor(&squares, DType::f64, {1}), limit);
  }
  Array scalars = Array(adamw_scalars, 0.0f);
};

TEST_F(UpdateDecision, ClipsALongGradientAlone) {
  decide(1, 16, 1);
  EXPECT_EQ(scalars[adamw_gradient_factor], static_cast<float>(1 / (4 + 1e-6)));
  decide(1, 0.25, 1);
  EXPECT_EQ(scalars[adamw_gradient_factor], 1.0f);
  decide(1, 1e12, 0);  // no clipping
  EXPECT_EQ(scalars[adamw_gradient_factor], 1.0f);
  EXPECT_EQ(scalars[adamw_skip], 0.0f);
}

TEST_F(UpdateDecision, NoUpdateFollowsNumbersThatWentBad) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const bool loss : {true, false}) {
      scalars[adamw_skip] = 0;
      decide(loss ? bad : 1, loss ? 1 : bad, 1);
      EXPECT_EQ(scalars[adamw_skip], 1.0f);
      decide(1, 1, 1);
      EXPECT_EQ(scalars[adamw_skip], 1.0f);
    }
  }
  Array weights(9, 1.0f), gradients(9, 1.0f), exp_avg(9, 0.5f), exp_avg_sq(9, 0.5f);
  const auto update = [&] {
    scalars[adamw_learning_rate] = 0.1f, scalars[adamw_correction1] = scalars[adamw_correction2] = 1, scalars[adamw_step] = 1;
    cpu::adamw({weights.flat(), Tensor(), gradients.flat(), exp_avg.flat(), exp_avg_sq.flat()}, scalars.flat(), {}, {});
  };
  update();
  EXPECT_EQ(weights[8], 1.0f);
  EXPECT_EQ(exp_avg[0], 0.5f);
  EXPECT_EQ(exp_avg_sq[0], 0.5f);
  scalars[adamw_skip] = 0;
  update();
  EXPECT_LT(weights[8], 1.0f);
}

}  // namespace
}  // namespace baleen::ops::testing
