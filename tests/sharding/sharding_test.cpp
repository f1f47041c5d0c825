// The stages over units as a model never has them: frozen parameters between trainable ones, units smaller than the number of shards.
#include "sharding/sharding.h"

#include <gtest/gtest.h>

#include <mutex>

#include "base/error.h"
#include "base/rng.h"
#include "comm/thread_ranks.h"

namespace baleen {
namespace {

std::vector<UnitDescription> units() {
  return {{"embedding", {{"table", {60, 9}}}},
          {"block 0", {{"a", {30, 11}}, {"frozen a", {17, 23}, Initializer::normal, 0.5f, false}, {"b", {129}}}},
          {"block 1", {{"frozen b", {700}, Initializer::ones, 0, false}}},
          {"block 2", {{"c", {40, 40}}, {"frozen c", {3}, Initializer::normal, 1.0f, false}}},
          {"head", {{"norm", {5}, Initializer::ones}}}};
}

float gradient_of(ParameterId id, std::int64_t element, int rank, int micro_step) {
  return static_cast<float>((id.unit + 1) * (id.index + 2) + element % 13 + 3 * rank + micro_step);
}

std::vector<float> values_of(const Tensor& tensor) {
  return {tensor.as<float>(), tensor.as<float>() + tensor.elements()};
}

float value_at(const Tensor& tensor, std::int64_t i) {
  return tensor.dtype() == DType::f32 ? tensor.as<float>()[i] : to_float(tensor.as<BFloat16>()[i]);
}
void add_at(const Tensor& tensor, std::int64_t i, float value) {
  const float sum = value_at(tensor, i) + value;
  if (tensor.dtype() == DType::f32)
    tensor.as<float>()[i] = sum;
  else
    tensor.as<BFloat16>()[i] = to_bfloat16(sum);
}

// One training step of two micro-steps whose gradients are given; what the weights were in the pass before and in the pass after.
struct Seen {
  std::vector<std::vector<float>> before, after;
};

class Step {
 public:
  Step(Communicator& axis, int stage, DType gradient)
      : axis_(axis),
        device_(create_cpu_device()),
        stream_(device_->create_stream()),
        context_{*stream_, scratch_},
        storage_(*device_, units(),
                 StorageOptions{.gradient = gradient, .stage = stage, .shards = axis.size(), .shard = axis.rank(), .ends_share = true}),
        sharding_(axis, storage_, ReduceOp::sum) {
    storage_.initialize_weights(4);
  }

  Seen run() {
    Seen seen;
    sharding_.gradients().begin_step(*stream_);
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      sharding_.gradients().begin_micro_step(micro_step == 1);
      seen.before = forward();
      backward(micro_step);
    }
    sharding_.gradients().wait(context_);
    for (int unit = 0; unit < storage_.units(); ++unit) descend(unit);
    sharding_.weights().publish(*stream_);
    seen.after = forward();
    return seen;
  }

 private:
  std::vector<std::vector<float>> forward() {
    Sharding::Pass pass(sharding_, context_);
    std::vector<std::vector<float>> weights;
    for (int unit = 0; unit < storage_.units(); ++unit) {
      pass.weights_needed(unit, unit + 1 < storage_.units() ? unit + 1 : -1);
      for (int index = 0; index < static_cast<int>(storage_.unit(unit).parameters.size()); ++index)
        weights.push_back(values_of(storage_.weight({unit, index})));
      pass.weights_done(unit);
    }
    return weights;
  }

  void backward(int micro_step) {
    Sharding::Pass pass(sharding_, context_);
    for (int unit = storage_.units() - 1; unit >= 0; --unit) {
      pass.weights_needed(unit, unit - 1);
      pass.gradients_needed(unit);
      for (int index = 0; index < static_cast<int>(storage_.unit(unit).parameters.size()); ++index) {
        const ParameterId id{unit, index};
        if (!storage_.parameter(id).trainable) continue;
        const Tensor gradient = storage_.gradient_to_add(*stream_, id);
        for (std::int64_t i = 0; i < gradient.elements(); ++i) add_at(gradient, i, gradient_of(id, i, axis_.rank(), micro_step));
      }
      pass.weights_done(unit);
      pass.gradients_done(unit);
    }
  }

  // weight -= gradient / 64, on what this rank updates: exact in fp32 for these gradients up to the weight's own rounding.
  void descend(int unit) {
    const Tensor weights = storage_.updated_weights(unit), gradients = storage_.updated_gradients(unit);
    for (std::int64_t i = 0; i < weights.elements(); ++i) weights.as<float>()[i] -= value_at(gradients, i) / 64;
  }

  Communicator& axis_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena scratch_;
  ops::Context context_;
  UnitStorage storage_;
  Sharding sharding_;
};

TEST(Sharding, EveryStageSeesTheSameWeightsAndLeavesFrozenOnesAlone) {
  const auto device = create_cpu_device();
  UnitStorage whole(*device, units(), 1, StorageKind::inference);
  whole.initialize_weights(4);
  // bf16 holds whole numbers up to 256: what three ranks add up.
  for (const auto& [ranks, gradient] : std::vector<std::pair<int, DType>>{
           {1, DType::f32}, {2, DType::f32}, {3, DType::f32}, {5, DType::f32}, {1, DType::bf16}, {2, DType::bf16}, {3, DType::bf16}})
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage) + ", gradients in " +
                   std::string(dtype_name(gradient)));
      testing::run_members(ranks, [&, ranks = ranks, gradient = gradient](Communicator& axis) {
        const Seen seen = Step(axis, stage, gradient).run();
        std::size_t index = 0;
        for (const ParameterId id : whole.parameters()) {
          std::vector<float> expected = values_of(whole.weight(id));
          EXPECT_EQ(seen.before[index], expected) << whole.parameter(id).name;
          if (whole.parameter(id).trainable)
            for (std::size_t i = 0; i < expected.size(); ++i) {
              float sum = 0;
              for (int rank = 0; rank < ranks; ++rank)
                for (const int micro_step : {0, 1}) sum += gradient_of(id, static_cast<std::int64_t>(i), rank, micro_step);
              expected[i] -= sum / 64;
            }
          EXPECT_EQ(seen.after[index], expected) << whole.parameter(id).name;
          ++index;
        }
      });
    }
}

// The pool has what the unit before left there.
TEST(Sharding, GradientsBeginAsZerosThatTheFirstToAddNeedNotRead) {
  const auto device = create_cpu_device();
  const auto stream = device->create_stream();
  UnitStorage storage(*device,
                      {{"block", {{"written", {3, 5}}, {"added", {130}}, {"left", {4}}, {"frozen", {7}, Initializer::ones, 0, false}}}},
                      StorageOptions{.stage = 2, .shards = 3});
  const ParameterId written = storage.find("written"), added = storage.find("added"), left = storage.find("left");
  UnitPool& pool = storage.gradient_pool();
  auto* const memory = static_cast<float*>(pool.memory(0));
  const std::size_t elements = storage.layout(0).trainable_elements();
  for (int pass = 0; pass < 2; ++pass) {
    std::fill_n(memory, elements, 7.0f);
    storage.begin_gradients(0, *stream);
    pool.set_owner(pool.slot(0), 0);
    EXPECT_TRUE(storage.writes_first(written));
    EXPECT_FALSE(storage.writes_first(written));
    const Tensor product = storage.gradient(written);
    std::fill_n(product.as<float>(), product.elements(), 2.0f);
    for (int time = 0; time < 2; ++time) {
      const Tensor sum = storage.gradient_to_add(*stream, added);
      for (std::int64_t i = 0; i < sum.elements(); ++i) sum.as<float>()[i] += 1;
    }
    storage.complete_gradients(0, *stream);
    std::vector<float> expected(elements, 0.0f);
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(storage.layout(0).offset(written.index)), 15, 2.0f);
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(storage.layout(0).offset(added.index)), 130, 2.0f);
    EXPECT_EQ(std::vector<float>(memory, memory + elements), expected) << pass;
    EXPECT_FALSE(storage.writes_first(left));
  }
}

TEST(Sharding, AUnitUsedWithoutHavingBeenGatheredIsNoticed) {
  const auto device = create_cpu_device();
  UnitStorage storage(*device, units(), StorageOptions{.stage = 3});
  EXPECT_ANY_THROW(storage.weight(storage.find("table")));
  EXPECT_ANY_THROW(storage.gradient(storage.find("table")));
}

// No batch is small enough for a model that does not fit: another size or division of it is advised, and nothing is listed as held.
TEST(Sharding, AModelWithoutRoomSaysWhatWouldHelp) {
  const auto device = create_cpu_device();
  const std::vector<UnitDescription> huge{{"embedding", {{"table", {std::int64_t{1} << 45, 64}}}}};  // 8 PiB
  try {
    const UnitStorage storage(*device, huge, StorageOptions{});
    FAIL() << "allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::out_of_memory);
    EXPECT_TRUE(error.what_is_wrong().ends_with("for 'weights'")) << error.what();
    EXPECT_NE(error.remedy().find("a smaller model"), std::string::npos) << error.what();
    EXPECT_EQ(error.remedy().find("micro_batch_size"), std::string::npos) << error.what();
  }
  const Buffer held = device->allocate("something", 512);
  try {
    device->allocate("more", std::size_t{1} << 53);
    FAIL() << "allocated";
  } catch (const Error& error) {
    EXPECT_NE(error.what_is_wrong().find("held already:\n"), std::string::npos) << error.what();
    EXPECT_NE(error.what_is_wrong().find("512 bytes  something"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace baleen
