#include "parallel/collective_programs.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/connect.h"
#include "launch/stop_signal.h"

namespace baleen::testing {
namespace {

using Clock = std::chrono::milliseconds;

std::vector<int> everybody(const World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  return ranks;
}

struct Job {
  explicit Job(Clock timeout = std::chrono::seconds(60))
      : world(connect_world(detect_ranks(), timeout)), comm(world->create_communicator(everybody(*world), "dp")) {}
  std::unique_ptr<World> world;
  std::unique_ptr<Communicator> comm;
};

// Every collective once for each count; sums of small integers are exact.
bool collectives_are_right(Communicator& comm, std::size_t count) {
  const auto size = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  const auto value = [](std::size_t from, std::size_t index) { return static_cast<float>((from * 3 + index) % 11); };
  std::vector<float> data(count), all(count * size), own(count);
  for (std::size_t index = 0; index < count; ++index) data[index] = value(rank, index);
  comm.all_gather(data.data(), all.data(), count, DType::f32).wait();
  bool right = true;
  for (std::size_t from = 0; from < size; ++from)
    for (std::size_t index = 0; index < count; ++index) right &= all[from * count + index] == value(from, index);
  comm.reduce_scatter(all.data(), own.data(), count, DType::f32, ReduceOp::sum).wait();
  for (std::size_t index = 0; index < count; ++index) right &= own[index] == static_cast<float>(size) * value(rank, index);
  comm.all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum).wait();
  for (std::size_t index = 0; index < count; ++index) {
    float sum = 0;
    for (std::size_t from = 0; from < size; ++from) sum += value(from, index);
    right &= data[index] == sum;
  }
  for (const std::size_t root : {std::size_t{0}, size - 1}) {
    for (std::size_t index = 0; index < count; ++index) data[index] = rank == root ? value(root, index) : -1.0f;
    comm.broadcast(data.data(), count, DType::f32, static_cast<int>(root)).wait();
    for (std::size_t index = 0; index < count; ++index) right &= data[index] == value(root, index);
  }
  if (size > 1) {  // around the ring, everybody sending first
    const Event sent = comm.send(data.data(), count, DType::f32, static_cast<int>((rank + 1) % size));
    const Event received = comm.recv(own.data(), count, DType::f32, static_cast<int>((rank + size - 1) % size));
    sent.wait();
    received.wait();
    right &= own == data;
  }
  std::vector<float> blocks(count * size);
  for (std::size_t to = 0; to < size; ++to)
    for (std::size_t index = 0; index < count; ++index) blocks[to * count + index] = value(rank * size + to, index);
  comm.all_to_all(blocks.data(), blocks.data(), count, DType::f32).wait();
  for (std::size_t from = 0; from < size; ++from)
    for (std::size_t index = 0; index < count; ++index) right &= blocks[from * count + index] == value(from * size + rank, index);
  comm.barrier().wait();
  return right;
}

int collectives() {
  const std::size_t before = open_descriptors();
  {
    Job job;
    for (const std::size_t count : {0, 1, 127, 128, 129, 1000, 100'003, 200'000})
      if (!collectives_are_right(*job.comm, count)) return 1;
  }
  return open_descriptors() == before - 1 ? 0 : 1;  // the region's descriptor, closed once mapped
}

// Reduces for ever; the failing rank does `misfortune` in the middle of it.
template <class Misfortune>
int reduce_until(Clock timeout, int failing_rank, Misfortune&& misfortune) {
  std::vector<float> data(300'000, 1.0f);  // outlives the job, whose worker may be in the middle of it when the misfortune throws
  Job job(timeout);
  for (int step = 0;; ++step) {
    const Event reduced = job.comm->all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::avg);
    if (step == 20 && job.comm->rank() == failing_rank) misfortune();
    reduced.wait();
  }
}

// What a trainer does with a request: all ranks agree on the step after which they stop.
int stop_together() {
  Job job;
  const StopSignal stop;
  for (int step = 0;; ++step) {
    if (step == 20 && job.comm->rank() == 0) kill(detect_ranks().launcher_pid, SIGTERM);
    std::int32_t requested = stop.requested();
    job.comm->all_reduce(&requested, &requested, 1, DType::i32, ReduceOp::max).wait();
    if (requested != 0) return static_cast<int>(ExitCode::stopped);
  }
}

// Starts as torchrun would start it: the same variables, no shared memory handed down.
int under_torchrun() {
  const std::string rank = std::getenv("BALEEN_RANK"), size = std::getenv("BALEEN_WORLD_SIZE");
  for (const char* name : {"RANK", "LOCAL_RANK"}) setenv(name, rank.c_str(), 1);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) setenv(name, size.c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "29500", 1);
  setenv("TORCHELASTIC_RUN_ID", std::getenv("BALEEN_LAUNCHER_PID"), 1);
  unsetenv("BALEEN_RANK");
  Job job;
  return detect_ranks().source == RankSource::torchrun && collectives_are_right(*job.comm, 10'000) ? 0 : 1;
}

}  // namespace

RankPrograms collective_programs() {
  return {{"collectives", collectives},
          {"killed", [] { return reduce_until(std::chrono::seconds(60), 1, [] { raise(SIGKILL); }); }},
          {"frozen", [] { return reduce_until(Clock(1500), 1, [] { raise(SIGSTOP); }); }},
          {"bad_data",
           [] { return reduce_until(std::chrono::seconds(60), 2, [] { throw Error(ExitCode::bad_data, "token 12 is foreign"); }); }},
          {"stop_together", stop_together},
          {"under_torchrun", under_torchrun}};
}

}  // namespace baleen::testing
