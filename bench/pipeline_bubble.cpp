// The bubble of every pipeline schedule, measured with layers that sleep, beside its formula. Ranks are threads; sleeping takes no
// processor, so that a few cores are enough.
//
//   build/release/pipeline_bubble [--stages 4] [--micro-batches 8] [--virtual 2] [--ms 10] [--steps 3]
//
// --ms: the time of each of forward, backward's input half and its weight half of a whole stage. One line a schedule: the bubble of the
// best of the steps after one to warm up, over all ranks from the first action to the last; the formula; what the simulator says.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/shm/shm_world.h"
#include "pipeline/executor.h"
#include "pipeline/simulate.h"

namespace {

using namespace baleen;

struct Options {
  int stages = 4, micro_batches = 8, virtual_stages = 2, steps = 3;
  double milliseconds = 10;
};

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    if (value == nullptr)
      throw Error(ExitCode::bad_config, name + " needs a value", "the command line", "see the head of bench/pipeline_bubble.cpp");
    if (name == "--stages")
      options.stages = std::atoi(value);
    else if (name == "--micro-batches")
      options.micro_batches = std::atoi(value);
    else if (name == "--virtual")
      options.virtual_stages = std::atoi(value);
    else if (name == "--ms")
      options.milliseconds = std::atof(value);
    else if (name == "--steps")
      options.steps = std::atoi(value);
    else
      throw Error(ExitCode::bad_config, "unknown option " + name, "the command line", "see the head of bench/pipeline_bubble.cpp");
  }
  return options;
}

// Layers that take time and nothing else.
class Sleep final : public StageWork {
 public:
  explicit Sleep(std::chrono::nanoseconds half) : half_(half) {}
  void forward(int, int, const Tensor&, const Tensor&) override { std::this_thread::sleep_for(half_); }
  void backward(int, int, const Tensor&, const Tensor&) override { std::this_thread::sleep_for(2 * half_); }
  void backward_input(int, int, const Tensor&, const Tensor&) override { std::this_thread::sleep_for(half_); }
  void backward_weight(int, int) override { std::this_thread::sleep_for(half_); }

 private:
  std::chrono::nanoseconds half_;
};

double measure(const Schedule& schedule, const Options& options) {
  auto worlds = create_thread_worlds(schedule.stages);
  double best = 1;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < schedule.stages; ++rank)
      threads.emplace_back([&, rank] {
        World& world = *worlds[static_cast<std::size_t>(rank)];
        std::vector<int> ranks;
        for (int other = 0; other < schedule.stages; ++other) ranks.push_back(other);
        const auto stages = world.create_communicator(ranks, "pp");
        const auto device = create_cpu_device();
        const auto stream = device->create_stream();
        PipelineLinks links(world, ranks, schedule.virtual_stages > 1);
        PipelineExecutor executor(schedule, rank, {256, 256, DType::f32}, *device, *stream, &links);
        Sleep work(std::chrono::nanoseconds(static_cast<std::int64_t>(options.milliseconds * 1e6 / schedule.virtual_stages)));
        for (int step = 0; step <= options.steps; ++step) {
          stages->barrier().wait();
          executor.run(work);
          const double bubble = bubble_fraction(*stages, executor.times());
          if (rank == 0 && step > 0) best = std::min(best, bubble);
        }
      });
  }
  return best;
}

void report(ScheduleKind kind, const Options& options) {
  const int v = kind == ScheduleKind::interleaved ? options.virtual_stages : 1;
  const double p = options.stages, m = options.micro_batches;
  const Schedule schedule = make_schedule(kind, options.stages, v, options.micro_batches);
  const double formula = kind == ScheduleKind::zero_bubble ? (p - 1) / (3 * m + p - 1) : (p - 1) / (v * m + p - 1);
  const double measured = measure(schedule, options), simulated = simulate(schedule, {ChunkCosts{}}).bubble_fraction;
  std::cout << fmt::format("{:12} p {} v {} m {}: measured {:.4f}, formula {:.4f} ({:+.1f} %), simulated {:.4f}\n", schedule_name(kind),
                           options.stages, v, options.micro_batches, measured, formula, (measured / formula - 1) * 100, simulated)
            << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = read_options(argc, argv);
    for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zero_bubble})
      report(kind, options);
    return 0;
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}
