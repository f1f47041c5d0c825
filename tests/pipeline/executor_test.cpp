// The executor over thread ranks: what every computation reads, when, and what is sent for it.
#include "pipeline/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>

#include "base/error.h"
#include "comm/thread_ranks.h"

namespace baleen {
namespace {

using testing::all_ranks;
using ::testing::HasSubstr;
using testing::run_members;
using testing::run_ranks;

constexpr BoundaryShape shape{7, 33, DType::f32};

// Each chunk adds 1 to its input, on the way back 1000 to the gradient; the first input and the last gradient follow from the micro-batch.
float activation_after(int chunk, int micro_batch, std::int64_t element, int step) {
  return static_cast<float>(step * 5000 + micro_batch * 300 + element + chunk + 1);
}
float gradient_before(int chunk, int chunks, int micro_batch, std::int64_t element) {
  return static_cast<float>(-micro_batch * 300 - element - 1000 * (chunks - chunk));
}

// Checks everything that it is given, and that nothing changes under it before it may.
class CheckedWork final : public StageWork {
 public:
  explicit CheckedWork(const Schedule& schedule) : schedule_(schedule) {}
  int step = 0;
  std::vector<Action> done;

  void forward(int chunk, int i, const Tensor& in, const Tensor& out) override {
    done.push_back({ActionKind::forward, chunk, i});
    ASSERT_EQ(in.defined(), !schedule_.first(chunk));
    ASSERT_EQ(out.defined(), !schedule_.last(chunk));
    inputs_[{chunk, i}] = in;
    check_input(chunk, i);
    if (out.defined()) fill(out, [&](std::int64_t e) { return activation_after(chunk, i, e, step); });
  }
  void backward(int chunk, int i, const Tensor& d_out, const Tensor& d_in) override {
    done.push_back({ActionKind::backward, chunk, i});
    first_half(chunk, i, d_out, d_in);
    last_half(chunk, i);
  }
  void backward_input(int chunk, int i, const Tensor& d_out, const Tensor& d_in) override {
    done.push_back({ActionKind::backward_input, chunk, i});
    first_half(chunk, i, d_out, d_in);
  }
  void backward_weight(int chunk, int i) override {
    done.push_back({ActionKind::backward_weight, chunk, i});
    last_half(chunk, i);
  }
  void gather(int chunk) override { done.push_back({ActionKind::gather, chunk}); }
  void release(int chunk) override { done.push_back({ActionKind::release, chunk}); }
  void reduce(int chunk) override { done.push_back({ActionKind::reduce, chunk}); }

 private:
  void first_half(int chunk, int i, const Tensor& d_out, const Tensor& d_in) {
    ASSERT_EQ(d_out.defined(), !schedule_.last(chunk));
    ASSERT_EQ(d_in.defined(), !schedule_.first(chunk));
    gradients_[{chunk, i}] = d_out;
    check_gradient(chunk, i);
    check_input(chunk, i);
    if (d_in.defined()) fill(d_in, [&](std::int64_t e) { return gradient_before(chunk, schedule_.chunks(), i, e); });
  }
  void last_half(int chunk, int i) {
    check_gradient(chunk, i);
    check_input(chunk, i);
  }
  void check_input(int chunk, int i) {
    const Tensor in = inputs_.at({chunk, i});
    if (in.defined()) check(in, [&](std::int64_t e) { return activation_after(chunk - 1, i, e, step); });
  }
  void check_gradient(int chunk, int i) {
    const Tensor d_out = gradients_.at({chunk, i});
    if (d_out.defined()) check(d_out, [&](std::int64_t e) { return gradient_before(chunk + 1, schedule_.chunks(), i, e); });
  }
  template <class Value>
  static void fill(const Tensor& tensor, const Value& value) {
    for (std::int64_t e = 0; e < tensor.elements(); ++e) tensor.as<float>()[e] = value(e);
  }
  template <class Value>
  static void check(const Tensor& tensor, const Value& value) {
    ASSERT_EQ(tensor.size(0), shape.rows);
    ASSERT_EQ(tensor.size(1), shape.columns);
    for (std::int64_t e = 0; e < tensor.elements(); ++e) ASSERT_EQ(tensor.as<float>()[e], value(e)) << "element " << e;
  }

  const Schedule& schedule_;
  std::map<std::pair<int, int>, Tensor> inputs_, gradients_;
};

class Recorder final : public PipelineObserver {
 public:
  void on_action(const Action& action, PipelineClock::time_point begin, PipelineClock::time_point end) override {
    ASSERT_LE(begin, end);
    ASSERT_LE(last_end_, begin);
    last_end_ = end;
    actions.push_back(action);
  }
  std::vector<Action> actions;

 private:
  PipelineClock::time_point last_end_ = PipelineClock::time_point::min();
};

// Three steps of a schedule on one pipeline of all ranks.
void run_schedule(const Schedule& schedule, bool prefetch) {
  run_ranks(schedule.stages, [&](World& world) {
    const auto device = create_cpu_device();
    const auto stream = device->create_stream();
    PipelineLinks links(world, all_ranks(schedule.stages), schedule.virtual_stages > 1);
    PipelineExecutor executor(schedule, world.rank(), shape, *device, *stream, &links, {prefetch});
    CheckedWork work(schedule);
    const auto& table = schedule.ranks[static_cast<std::size_t>(world.rank())];
    for (work.step = 0; work.step < 3; ++work.step) {
      Recorder recorder;
      work.done.clear();
      executor.run(work, &recorder);
      if (::testing::Test::HasFatalFailure()) return;
      ASSERT_EQ(recorder.actions, table);
      std::vector<Action> own;
      for (const Action& action : table)
        if (action.compute() || action.micro_batch < 0) own.push_back(action);
      ASSERT_EQ(work.done, own);
      ASSERT_GT(executor.times().busy.count(), 0);
      ASSERT_LE(executor.times().busy, executor.times().end - executor.times().begin);
      ASSERT_GE(executor.times().bubble_fraction(), 0);
    }
    // Everybody is through with the last messages before any link closes.
    world.create_communicator(all_ranks(schedule.stages), "end")->barrier().wait();
  });
}

TEST(Executor, EverySchedule) {
  for (const auto& [kind, stages, virtual_stages, micro_batches] :
       {std::tuple{ScheduleKind::gpipe, 1, 1, 3}, std::tuple{ScheduleKind::gpipe, 3, 1, 5}, std::tuple{ScheduleKind::one_f_one_b, 2, 1, 1},
        std::tuple{ScheduleKind::one_f_one_b, 4, 1, 9}, std::tuple{ScheduleKind::zero_bubble, 4, 1, 9},
        std::tuple{ScheduleKind::zero_bubble, 3, 1, 2}, std::tuple{ScheduleKind::interleaved, 1, 3, 4},
        std::tuple{ScheduleKind::interleaved, 2, 2, 4}, std::tuple{ScheduleKind::interleaved, 3, 2, 7},
        std::tuple{ScheduleKind::interleaved, 4, 3, 8}})
    for (const bool prefetch : {true, false}) {
      SCOPED_TRACE(schedule_name(kind));
      run_schedule(make_schedule(kind, stages, virtual_stages, micro_batches), prefetch);
      if (HasFatalFailure()) return;
    }
}

TEST(Executor, ShardedSchedule) {
  run_schedule(with_sharding(make_schedule(ScheduleKind::interleaved, 2, 3, 4), 2), true);
  run_schedule(with_sharding(make_schedule(ScheduleKind::zero_bubble, 3, 1, 4), 0), true);
}

TEST(Executor, ForwardAlone) {
  run_schedule(make_forward_schedule(3, 1, 7), true);
  run_schedule(make_forward_schedule(3, 2, 7), true);
  run_schedule(make_forward_schedule(1, 2, 3), true);
}

// Each of a world's two pipelines, as in a mesh with data parallelism: stage 0 is ranks 0 and 1, stage 1 ranks 2 and 3, …
TEST(Executor, PipelinesSideBySide) {
  const Schedule schedule = make_schedule(ScheduleKind::interleaved, 3, 2, 3);
  run_ranks(6, [&](World& world) {
    const auto device = create_cpu_device();
    const auto stream = device->create_stream();
    const int pipeline = world.rank() % 2;
    PipelineLinks links(world, {pipeline, 2 + pipeline, 4 + pipeline}, true);
    PipelineExecutor executor(schedule, world.rank() / 2, shape, *device, *stream, &links);
    CheckedWork work(schedule);
    work.step = pipeline;  // other numbers in each
    executor.run(work);
    world.create_communicator(all_ranks(6), "end")->barrier().wait();
  });
}

// What a step sends: an activation of each micro-batch across each boundary between ranks, and its gradient back.
TEST(Executor, BytesOnTheWire) {
  for (const auto& [kind, virtual_stages] : {std::pair{ScheduleKind::one_f_one_b, 1}, std::pair{ScheduleKind::interleaved, 3}}) {
    const Schedule schedule = make_schedule(kind, 3, virtual_stages, 6);
    run_ranks(3, [&, v = virtual_stages](World& world) {
      const auto device = create_cpu_device();
      const auto stream = device->create_stream();
      PipelineLinks links(world, all_ranks(3), v > 1);
      PipelineExecutor executor(schedule, world.rank(), shape, *device, *stream, &links);
      CheckedWork work(schedule);
      executor.run(work);
      world.create_communicator(all_ranks(3), "end")->barrier().wait();
      const int boundaries_after = v - (world.rank() == 2 ? 1 : 0), boundaries_before = v - (world.rank() == 0 ? 1 : 0);
      const std::size_t message = 7 * 33 * sizeof(float);
      ASSERT_EQ(links.bytes_sent(), static_cast<std::size_t>(6 * (boundaries_after + boundaries_before)) * message);
    });
  }
}

TEST(Executor, BuffersAreNamedAndCounted) {
  const Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 8);
  run_ranks(2, [&](World& world) {
    const auto device = create_cpu_device();
    const auto stream = device->create_stream();
    PipelineLinks links(world, all_ranks(2), false);
    const PipelineExecutor executor(schedule, world.rank(), shape, *device, *stream, &links);
    ASSERT_EQ(shape.slot_bytes(), 1024u);  // 7 x 33 x 4 = 924
    using Held = std::map<std::string, std::size_t>;
    ASSERT_EQ(device->allocations(), world.rank() == 0 ? (Held{{"pipeline output gradients", 2 * 1024}, {"pipeline outputs", 2 * 1024}})
                                                       : (Held{{"pipeline inputs", 2 * 1024}, {"pipeline input gradients", 2 * 1024}}));
    std::size_t bytes = 0;
    for (const auto& [name, held] : device->allocations()) bytes += held;
    ASSERT_EQ(bytes, static_cast<std::size_t>(executor.plan().slots()) * shape.slot_bytes());
  });
}

TEST(Executor, ScheduleWithAFaultIsRefused) {
  Schedule broken = make_schedule(ScheduleKind::gpipe, 1, 1, 2);
  broken.ranks[0].pop_back();
  const auto device = create_cpu_device();
  const auto stream = device->create_stream();
  try {
    PipelineExecutor(broken, 0, shape, *device, *stream, nullptr);
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing: backward of chunk 0, micro-batch 1"));
  }
}

// A stage that fails takes the others with it: they do not wait for its messages until the deadline.
TEST(Executor, FailureOfAStage) {
  class Idle final : public StageWork {
   public:
    explicit Idle(bool fails) : fails_(fails) {}
    void forward(int, int micro_batch, const Tensor&, const Tensor&) override {
      if (fails_ && micro_batch == 2) throw std::runtime_error("no third micro-batch");
    }
    void backward(int, int, const Tensor&, const Tensor&) override {}
    void backward_input(int, int, const Tensor&, const Tensor&) override {}
    void backward_weight(int, int) override {}

   private:
    bool fails_;
  };
  std::atomic<int> told{0};
  const auto stage = [&](World& world) {
    const auto device = create_cpu_device();
    const auto stream = device->create_stream();
    PipelineLinks links(world, all_ranks(3), false);
    PipelineExecutor executor(make_schedule(ScheduleKind::one_f_one_b, 3, 1, 5), world.rank(), shape, *device, *stream, &links);
    Idle work(world.rank() == 1);
    try {
      for (;;) executor.run(work);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::rank_failed);
      EXPECT_THAT(error.what(), HasSubstr("stage 1 of the pipeline failed: no third micro-batch"));
      ++told;
    } catch (const std::runtime_error&) {
      EXPECT_EQ(world.rank(), 1);
    }
  };
  run_ranks(3, stage);
  EXPECT_EQ(told, 2);
}

// Spans of two stages that begin and end at different times, by hand.
TEST(Executor, BubbleOverStages) {
  const auto start = PipelineClock::now();
  run_members(2, [&](Communicator& stages) {
    using std::chrono::milliseconds;
    PipelineTimes times;
    times.begin = start + milliseconds(stages.rank() == 0 ? 0 : 2);
    times.end = start + milliseconds(stages.rank() == 0 ? 10 : 12);
    times.busy = milliseconds(stages.rank() == 0 ? 5 : 9);
    ASSERT_NEAR(times.bubble_fraction(), stages.rank() == 0 ? 0.5 : 0.1, 1e-12);
    ASSERT_NEAR(bubble_fraction(stages, times), 1 - 14.0 / 24, 1e-9);
    ASSERT_TRUE(one_clock(stages));
  });
  EXPECT_EQ(PipelineTimes{}.bubble_fraction(), 0);
}

// The second machine has been up for a day longer.
TEST(Executor, BubbleOverStagesOfSeveralClocks) {
  const auto start = PipelineClock::now();
  run_members(2, [&](Communicator& stages) {
    using std::chrono::milliseconds;
    const auto apart = std::chrono::hours(stages.rank() == 0 ? 0 : 24);
    PipelineTimes times;
    times.begin = start + apart + milliseconds(stages.rank() == 0 ? 0 : 2);
    times.end = start + apart + milliseconds(stages.rank() == 0 ? 10 : 12);
    times.busy = milliseconds(stages.rank() == 0 ? 5 : 9);
    ASSERT_NEAR(bubble_fraction(stages, times, start + apart - std::chrono::hours(1)), 1 - 14.0 / 24, 1e-9);
    ASSERT_LE(common_moment(stages), start);
  });
}

// Communicators on the way from every stage to the next, whether their number is even or odd.
TEST(PipelineLinks, RingsOfEveryLength) {
  for (int stages = 2; stages <= 5; ++stages)
    run_ranks(stages, [&](World& world) {
      PipelineLinks links(world, all_ranks(stages), true);
      std::int32_t activation = world.rank(), gradient = 100 + world.rank(), from_previous = -1, from_next = -1;
      const auto tensor = [](std::int32_t& value) { return Tensor(&value, DType::i32, {1}); };
      const std::vector<Event> events{links.recv_activation(tensor(from_previous), {}), links.recv_gradient(tensor(from_next), {}),
                                      links.send_activation(tensor(activation), {}), links.send_gradient(tensor(gradient), {})};
      for (const Event& event : events) event.wait();
      ASSERT_EQ(from_previous, (world.rank() + stages - 1) % stages);
      ASSERT_EQ(from_next, 100 + (world.rank() + 1) % stages);
      world.create_communicator(all_ranks(stages), "end")->barrier().wait();
    });
}

}  // namespace
}  // namespace baleen
