// The mistakes of a first implementation (docs/known-faults.md), made on purpose: `verify` or the replica check must catch each.
#include <gtest/gtest.h>

#include <cstring>

#include "parallel/small_training.h"
#include "sharding/replica_check.h"
#include "train/verify.h"

namespace baleen {
namespace {

using namespace testing;

enum class Mistake { none, sum_not_averaged, weights_not_gathered, reduced_too_early };

// A communicator that makes a mistake and otherwise does what the real one does.
class Mistaken : public Communicator {
 public:
  Mistaken(std::unique_ptr<Communicator> real, Mistake mistake)
      : Communicator(real->rank(), real->size(), real->name()), real_(std::move(real)), mistake_(mistake) {}
  void abort(const std::string& reason) override { real_->abort(reason); }

 protected:
  Event do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) override {
    return real_->all_reduce(early(send, count, dtype), recv, count, dtype, mistaken(op), after);
  }
  Event do_reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) override {
    return real_->reduce_scatter(early(send, count * static_cast<std::size_t>(size()), dtype), recv, count, dtype, mistaken(op), after);
  }
  Event do_all_gather(const void* send, void* recv, std::size_t count, DType dtype, Event after) override {
    // Weights are gathered over a communicator of their own.
    if (mistake_ == Mistake::weights_not_gathered && name() == "dp (weights)") return {};
    return real_->all_gather(send, recv, count, dtype, after);
  }
  Event do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) override {
    return real_->broadcast(buffer, count, dtype, root, after);
  }
  Event do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) override {
    return real_->send(buffer, count, dtype, peer, after);
  }
  Event do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) override {
    return real_->recv(buffer, count, dtype, peer, after);
  }
  Event do_barrier(Event after) override { return real_->barrier(after); }
  Event do_all_to_all(const void* send, void* recv, std::size_t count, DType dtype, Event after) override {
    return real_->all_to_all(send, recv, count, dtype, after);
  }

 private:
  ReduceOp mistaken(ReduceOp op) const { return mistake_ == Mistake::sum_not_averaged && op == ReduceOp::avg ? ReduceOp::sum : op; }
  // What a reduction would read that does not wait for the compute stream: here, the last eighth is not written yet.
  const void* early(const void* send, std::size_t count, DType dtype) {
    if (mistake_ != Mistake::reduced_too_early || count < 16) return send;
    auto* const bytes = static_cast<std::byte*>(const_cast<void*>(send));
    const std::size_t length = count * dtype_bytes(dtype);
    std::memset(bytes + length - length / 8, 0, length / 8);
    return send;
  }

  std::unique_ptr<Communicator> real_;
  Mistake mistake_;
};

class MistakenWorld : public World {
 public:
  MistakenWorld(World& real, Mistake mistake) : real_(real), mistake_(mistake) {}
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  std::string backend() const override { return real_.backend(); }
  std::unique_ptr<Communicator> create_communicator(const std::vector<int>& ranks, const std::string& name) override {
    auto real = real_.create_communicator(ranks, name);
    return real ? std::make_unique<Mistaken>(std::move(real), mistake_) : nullptr;
  }
  void abort(const std::string& reason) override { real_.abort(reason); }

 private:
  World& real_;
  Mistake mistake_;
};

LayoutResult verify_with(Mistake mistake, std::int64_t zero, double initializer_range = 0.02) {
  Config config;
  config.model = untied_llama();
  config.model.initializer_range = initializer_range;
  config.training.sequence_length = length;
  config.training.dtype = "fp32";
  config.training.global_batch_size = global_batch;
  config.comm.gradient_reduction = "avg";
  LayoutResult result;
  run_ranks(2, [&](World& world) {
    MistakenWorld mistaken(world, mistake);
    ParallelLayout layout;
    layout.dp = 2;
    layout.zero = zero;
    const VerifyReport report = verify_layouts(config, mistaken, {layout});
    if (world.rank() == 0) result = report.layouts.at(0);
  });
  return result;
}

TEST(FirstMistakes, VerifyPassesWithoutAny) {
  for (const std::int64_t zero : {0, 1, 2, 3}) EXPECT_TRUE(verify_with(Mistake::none, zero).ok) << zero;
}

TEST(FirstMistakes, EqualZerosDifferByNothing) {
  const LayoutResult result = verify_with(Mistake::none, 0, 0);
  EXPECT_EQ(result.grad_norm_error, 0);
  EXPECT_EQ(result.worst_error, 0);
  EXPECT_TRUE(result.ok);
}

TEST(FirstMistakes, ASumThatIsNotAveragedFailsVerify) {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    const LayoutResult result = verify_with(Mistake::sum_not_averaged, zero);
    EXPECT_FALSE(result.ok) << zero;
    EXPECT_NEAR(result.worst_error, 1, 1e-4) << zero;  // twice what it should be
    EXPECT_NEAR(result.grad_norm_error, 1, 1e-4) << zero;
    EXPECT_FALSE(result.worst_parameter.empty());
  }
}

TEST(FirstMistakes, AReductionThatDoesNotWaitForComputeFailsVerify) {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    const LayoutResult result = verify_with(Mistake::reduced_too_early, zero);
    EXPECT_FALSE(result.ok) << zero;
    EXPECT_FALSE(result.worst_parameter.empty());
  }
}

// Trains three steps, lets `meddle` do what an optimizer should not, and returns what the replica check says.
template <class Meddle>
std::string replica_check_says(Mistake mistake, int zero, const Meddle& meddle) {
  std::string message;
  run_ranks(2, [&](World& world) {
    MistakenWorld mistaken(world, mistake);
    const Training training{.layout = {2, zero}};
    const ParallelAxes axes(mistaken, training.layout.parallel(), training.model);
    Engine engine(training.engine_options(), axes.groups());
    engine.units().initialize_weights(11);
    AdamWOptimizer optimizer({}, engine.device(), engine.units());
    const UnevenBatches batches;
    TrainingStep step(engine, optimizer, batches, LrSchedule{LrScheduleKind::constant, 1e-3, 0, 0, 10, 0.1}, 1.0);
    for (int i = 1; i <= 3; ++i) step.run(i, false);
    engine.settle_weights();
    meddle(engine.units(), world.rank());
    try {
      check_replicas(engine.group().batch, engine.units());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_numbers);
      if (world.rank() == 0) message = error.what();
    }
  });
  return message;
}

TEST(FirstMistakes, WeightsThatAreNotGatheredFailTheReplicaCheck) {
  const auto nothing = [](UnitStorage&, int) {};
  EXPECT_EQ(replica_check_says(Mistake::none, 1, nothing), "");
  for (const int zero : {1, 2}) {
    const std::string message = replica_check_says(Mistake::weights_not_gathered, zero, nothing);
    EXPECT_NE(message.find("the replicas differ: rank 1"), std::string::npos) << message;
    EXPECT_NE(message.find("parameter model.embed_tokens.weight"), std::string::npos) << message;
  }
}

TEST(FirstMistakes, AnOptimizerThatUpdatesForeignSlicesFailsTheReplicaCheck) {
  // Plain descent on all of the last unit, of which only the own slice of the gradient is a sum over ranks.
  const auto update_all = [](UnitStorage& units, int) {
    const int unit = units.units() - 2;
    float* weights = units.flat_weights(unit).as<float>();
    const Tensor gradients = units.flat_gradients(unit);
    for (std::int64_t i = 0; i < gradients.elements(); ++i) weights[i] -= 1e-3f * gradients.as<float>()[i];
  };
  EXPECT_EQ(replica_check_says(Mistake::none, 0, update_all), "");  // where all is summed, all may update all
  const std::string message = replica_check_says(Mistake::none, 1, update_all);
  EXPECT_NE(message.find("the replicas differ: rank 1"), std::string::npos) << message;
  EXPECT_NE(message.find("parameter model.layers.1."), std::string::npos) << message;
}

}  // namespace
}  // namespace baleen
