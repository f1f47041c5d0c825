// A library that is asked for by name is called for one rank as for many, and hears beforehand which memory it will be given.
#include <algorithm>
#include <cstring>
#include <list>

#include "parallel/small_training.h"

namespace baleen::testing {
namespace {

// One rank of a library: its operations copy what is not in place.
class Library final : public Communicator {
 public:
  explicit Library(std::string name) : Communicator(0, 1, std::move(name)) {}
  bool alone() const override { return false; }
  void abort(const std::string&) override {}

  struct Range {
    std::byte* begin;
    std::size_t bytes;
  };
  std::shared_ptr<void> announce(void* memory, std::size_t bytes, MemoryUse) override {
    announced_.push_back({static_cast<std::byte*>(memory), bytes});
    const auto place = std::prev(announced_.end());
    return {memory, [this, place](void*) {
              *place->begin = std::byte{1};  // still there
              announced_.erase(place);
            }};
  }
  std::size_t announced() const { return announced_.size(); }
  int unannounced = 0;  // operations on fp32 buffers that nobody has spoken of
  int all_reduces = 0, reduce_scatters = 0, all_gathers = 0, added = 0;
  bool adds = false;
  bool adds_to_held(const void*, std::size_t, DType, ReduceOp) const override { return adds; }

 protected:
  Event do_reduce_scatter_add(const void* send, void* recv, std::size_t count, DType, ReduceOp, Event after) override {
    ++added;
    after.wait();
    for (std::size_t i = 0; i < count; ++i) static_cast<float*>(recv)[i] += static_cast<const float*>(send)[i];
    return {};
  }
  Event do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp, Event after) override {
    ++all_reduces;
    return move(send, recv, count, dtype, after);
  }
  Event do_reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp, Event after) override {
    ++reduce_scatters;
    return move(send, recv, count, dtype, after);
  }
  Event do_all_gather(const void* send, void* recv, std::size_t count, DType dtype, Event after) override {
    ++all_gathers;
    return move(send, recv, count, dtype, after);
  }
  Event do_broadcast(void*, std::size_t, DType, int, Event after) override { return after; }
  Event do_send(const void*, std::size_t, DType, int, Event after) override { return after; }
  Event do_recv(void*, std::size_t, DType, int, Event after) override { return after; }
  Event do_barrier(Event after) override { return after; }
  Event do_all_to_all(const void* send, void* recv, std::size_t count, DType dtype, Event after) override {
    return move(send, recv, count, dtype, after);
  }

 private:
  Event move(const void* send, void* recv, std::size_t count, DType dtype, const Event& after) {
    after.wait();
    std::memmove(recv, send, count * dtype_bytes(dtype));
    const auto* at = static_cast<const std::byte*>(recv);
    const bool known = std::any_of(announced_.begin(), announced_.end(), [&](const Range& range) {
      return at >= range.begin && at + count * dtype_bytes(dtype) <= range.begin + range.bytes;
    });
    if (dtype == DType::f32 && !known) ++unannounced;
    return {};
  }
  std::list<Range> announced_;
};

struct Outcome {
  std::vector<double> losses, norms;
};

Outcome train(const Training& training, const DataGroup& group, int steps, int* units = nullptr) {
  Engine engine(training.engine_options(), group);
  engine.units().initialize_weights(11);
  if (units != nullptr) *units = engine.units().units();
  AdamWOptimizer optimizer({.seed = 3}, engine.device(), engine.units());
  const UnevenBatches batches;
  TrainingStep step(engine, optimizer, batches, {LrScheduleKind::constant, 1e-3, 0, 0, 100, 0.1}, 1.0);
  Outcome out;
  for (int s = 1; s <= steps; ++s) {
    const auto result = step.run(s, false);
    out.losses.push_back(result->loss);
    out.norms.push_back(result->grad_norm);
  }
  return out;
}

class OneRankLibrary : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Zero, OneRankLibrary, ::testing::Values(0, 1, 2, 3), ::testing::PrintToStringParamName());

TEST_P(OneRankLibrary, IsCalledForEveryUnitAndToldOfItsMemory) {
  constexpr int steps = 3;
  Training training;
  training.layout.zero = GetParam();
  Library batch("batch"), reduce("dp"), gather("dp (weights)"), everyone("world");
  DataGroup group(batch, reduce, gather);
  group.everyone = &everyone;
  int units = 0;
  const Outcome library = train(training, group, steps, &units);

  EXPECT_EQ(reduce.all_reduces, GetParam() == 0 ? units * steps : 0);
  EXPECT_EQ(reduce.reduce_scatters, GetParam() == 0 ? 0 : units * steps);
  EXPECT_GE(gather.all_gathers, GetParam() == 0 ? 0 : units * steps);
  if (GetParam() != 3) {  // there a unit may be gathered twice, for forward and for backward
    EXPECT_EQ(gather.all_gathers, GetParam() == 0 ? 0 : units * steps);
  }
  EXPECT_EQ(everyone.all_reduces, 3 * steps);  // tokens and votes, losses, squares
  EXPECT_EQ(reduce.unannounced + gather.unannounced, 0);
  EXPECT_EQ(reduce.announced() + gather.announced(), 0u) << "registered longer than the memory lives";

  // What is asked of nobody by name is left out, and changes nothing.
  run_ranks(1, [&](World& world) {
    const auto alone = world.create_communicator({0}, "alone");
    EXPECT_TRUE(alone->alone());
    const Outcome plain = train(training, *alone, steps);
    EXPECT_EQ(plain.losses, library.losses);
    EXPECT_EQ(plain.norms, library.norms);
  });
}

// Micro-steps after the first add to the slice in the operation itself where the communicator can, with the same bits.
TEST(LibraryThatAdds, AddsToTheSlice) {
  constexpr int steps = 3, micro_steps = 3;
  for (const int zero : {1, 2, 3}) {
    Training training;
    training.layout.zero = zero;
    training.micro_batch = global_batch / micro_steps;
    Outcome outcomes[2];
    for (const bool adds : {false, true}) {
      Library batch("batch"), reduce("dp"), gather("dp (weights)"), everyone("world");
      reduce.adds = adds;
      DataGroup group(batch, reduce, gather);
      group.everyone = &everyone;
      int units = 0;
      outcomes[adds ? 1 : 0] = train(training, group, steps, &units);
      EXPECT_EQ(reduce.added, adds && zero > 1 ? units * steps * (micro_steps - 1) : 0) << zero;
      EXPECT_EQ(reduce.added + reduce.reduce_scatters, units * steps * (zero > 1 ? micro_steps : 1)) << zero;
    }
    EXPECT_EQ(outcomes[0].losses, outcomes[1].losses) << zero;
    EXPECT_EQ(outcomes[0].norms, outcomes[1].norms) << zero;
  }
}

}  // namespace
}  // namespace baleen::testing
