// Collectives of buffers on a GPU, by two ranks that share it: what the same collectives of host memory give.
#include "comm/staged_communicator.h"

#include "comm/thread_ranks.h"
#include "gpu/support.h"

namespace baleen::testing {
namespace {

constexpr int ranks = 2;
constexpr std::int64_t count = 1000;

class GpuStagedCommunicator : public OnBothDevices {
 protected:
  // Each rank's values after `collective(communicator, send, recv, event)`, with buffers of `sent` and `received` elements on a device.
  template <class Collective>
  std::vector<Floats> run(bool on_gpu, std::int64_t sent, std::int64_t received, const Collective& collective) {
    std::vector<Floats> results(ranks);
    run_ranks(ranks, [&](World& world) {
      Side side(on_gpu ? create_gpu_device(0) : create_cpu_device());
      std::unique_ptr<Communicator> communicator = world.create_communicator(all_ranks(ranks), "dp");
      if (on_gpu) communicator = std::make_unique<StagedCommunicator>(std::move(communicator), side.device());
      Floats values;
      for (std::int64_t i = 0; i < sent; ++i) values.push_back(static_cast<float>(i % 17) + 100.0f * static_cast<float>(world.rank()));
      const Tensor send = side.put(values, {sent}), recv = side.put(Floats(static_cast<std::size_t>(received), -1.0f), {received});
      collective(*communicator, send.as<float>(), recv.as<float>(), side.stream().record()).wait();
      results[static_cast<std::size_t>(world.rank())] = side.get(recv);
      communicator->barrier().wait();
    });
    return results;
  }
  template <class Collective>
  void compare(std::int64_t sent, std::int64_t received, const Collective& collective) {
    EXPECT_EQ(run(true, sent, received, collective), run(false, sent, received, collective));
  }
};

TEST_F(GpuStagedCommunicator, AllReduceAndInPlace) {
  compare(count, count, [](Communicator& c, float* send, float* recv, Event after) {
    return c.all_reduce(send, recv, count, DType::f32, ReduceOp::sum, after);
  });
  compare(count, count, [](Communicator& c, float*, float* recv, Event after) {
    return c.all_reduce(recv, recv, count, DType::f32, ReduceOp::avg, after);
  });
}

TEST_F(GpuStagedCommunicator, ReduceScatterAllGatherAllToAll) {
  compare(ranks * count, count, [](Communicator& c, float* send, float* recv, Event after) {
    return c.reduce_scatter(send, recv, count, DType::f32, ReduceOp::sum, after);
  });
  compare(count, ranks * count,
          [](Communicator& c, float* send, float* recv, Event after) { return c.all_gather(send, recv, count, DType::f32, after); });
  compare(ranks * count, ranks * count,
          [](Communicator& c, float* send, float* recv, Event after) { return c.all_to_all(send, recv, count, DType::f32, after); });
}

TEST_F(GpuStagedCommunicator, BroadcastSendAndReceive) {
  compare(count, count, [](Communicator& c, float* send, float* recv, Event after) {
    if (c.rank() == 1) return c.broadcast(send, count, DType::f32, 1, after);
    return c.broadcast(recv, count, DType::f32, 1, after);
  });
  compare(count, count, [](Communicator& c, float* send, float* recv, Event after) {  // both send first
    const Event sent = c.send(send, count, DType::f32, 1 - c.rank(), after);
    c.recv(recv, count, DType::f32, 1 - c.rank(), after).wait();
    return sent;
  });
}

TEST_F(GpuStagedCommunicator, OneRankMovesWhatIsNotInPlace) {
  run_ranks(1, [&](World& world) {
    StagedCommunicator alone(world.create_communicator({0}, "dp"), gpu->device());
    const Floats values = random(count);
    const Tensor send = gpu->put(values, {count}), recv = gpu->poisoned({count});
    alone.all_reduce(send.data(), recv.data(), count, DType::f32, ReduceOp::sum, gpu->stream().record()).wait();
    EXPECT_EQ(gpu->get(recv), values);
    double host = 3;
    alone.all_reduce(&host, &host, 1, DType::f64, ReduceOp::sum).wait();
    EXPECT_EQ(host, 3);
  });
}

}  // namespace
}  // namespace baleen::testing
