// What saving a checkpoint costs a training run: how long it pauses, beside copying as many bytes in memory, and how fast the files are
// written behind its back, beside what `dd` writes to the same folder; and the comparison of replicas, beside a step.
//
//   checkpoint_save DIR [HIDDEN] [LAYERS]     in a folder on the disk to be measured, with the width and depth of a Llama (768, 6)
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "comm/shm/shm_world.h"
#include "ops/threads.h"
#include "sharding/replica_check.h"
#include "train/checkpoint_saver.h"
#include "train/engine.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// As training copies: by all threads, in the same parts.
double copy_seconds(std::vector<char>& to, const std::vector<char>& from) {
  constexpr std::size_t part = std::size_t{8} << 20;
  const auto parts = static_cast<std::int64_t>((from.size() + part - 1) / part);
  const auto begin = Clock::now();
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::size_t first = static_cast<std::size_t>(i) * part;
    std::memcpy(to.data() + first, from.data() + first, std::min(part, from.size() - first));
  }
  return seconds_since(begin);
}

double dd_seconds(const std::filesystem::path& file, std::uint64_t bytes) {
  const std::string command =
      "dd if=/dev/zero of='" + file.string() + "' bs=1M count=" + std::to_string(bytes >> 20) + " conv=fsync status=none";
  const auto begin = Clock::now();
  if (std::system(command.c_str()) != 0) std::fprintf(stderr, "dd failed\n");
  const double seconds = seconds_since(begin);
  std::filesystem::remove(file);
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace baleen;
  if (argc < 2) {
    std::fprintf(stderr, "usage: checkpoint_save DIR [HIDDEN] [LAYERS]\n");
    return 2;
  }
  const std::filesystem::path folder = std::filesystem::path(argv[1]) / ("checkpoint-save-" + std::to_string(::getpid()));
  ModelConfig model;
  model.hidden_size = argc > 2 ? std::atoi(argv[2]) : 768;
  model.intermediate_size = 3 * model.hidden_size;
  model.num_hidden_layers = argc > 3 ? std::atoi(argv[3]) : 6;
  model.num_attention_heads = model.num_key_value_heads = 8;
  model.head_dim = model.hidden_size / 8;
  model.vocab_size = 32000;
  model.max_position_embeddings = 128;
  ops::set_threads(0);
  auto worlds = create_thread_worlds(1);
  const auto axis = worlds[0]->create_communicator({0}, "dp");
  Engine engine({model, 1, 128, ops::threads(), StorageKind::training, ReduceOp::sum}, *axis);
  engine.units().initialize_weights(1);

  TrainingState state;
  state.model_config = model_config_json(model);
  CheckpointSaver saver(folder, 2, engine.group(), engine.units(), &engine.device());
  std::vector<double> paused, copying, plain, writing, dd;
  std::vector<char> from, to;
  for (int round = 0; round < 5; ++round) {
    state.step = round + 1;
    saver.begin(state);
    saver.finish();
    const auto& times = saver.times();
    from.resize(times.bytes, 'x');
    to.resize(times.bytes, 'y');
    paused.push_back(times.paused);
    copying.push_back(times.copying);
    writing.push_back(times.writing);
    plain.push_back(copy_seconds(to, from));
    dd.push_back(dd_seconds(folder / "dd", times.bytes));
  }
  const double bytes = static_cast<double>(saver.times().bytes);
  std::printf("%.1f MB of states, %d threads, medians of %zu saves to %s%s\n", bytes / 1e6, ops::threads(), paused.size(), argv[1],
              saver.background() ? "" : " IN THE FOREGROUND");
  std::printf("training paused  %8.1f ms (of that the copy %.1f ms)\nmemory copy      %8.1f ms\npause / copy     %8.2f\n",
              1e3 * median(paused), 1e3 * median(copying), 1e3 * median(plain), median(paused) / median(plain));
  std::printf("written, synced  %8.3f GB/s (with two checksums)\ndd, synced       %8.3f GB/s\n", bytes / median(writing) / 1e9,
              bytes / median(dd) / 1e9);

  std::vector<double> checks;
  for (int round = 0; round < 5; ++round) {
    const auto begin = Clock::now();
    baleen::check_replicas(engine.group(), engine.units());
    checks.push_back(seconds_since(begin));
  }
  const std::vector<std::int32_t> ids(4 * 128, 7);
  std::vector<double> steps;
  for (int round = 0; round < 3; ++round) {
    const auto begin = Clock::now();
    engine.gradients({ids, ids, 4}, 512);
    steps.push_back(seconds_since(begin));
  }
  std::printf("replica hashes   %8.1f ms; a pass over 512 tokens takes %.1f ms\n", 1e3 * median(checks), 1e3 * median(steps));
  std::filesystem::remove_all(folder);
  return 0;
}
