// The faults that end a run, each in both layouts: who notices, how soon, what is left.
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cstring>
#include <thread>

#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "faults/fault_fixture.h"

namespace baleen::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* endless = "training.steps=1000000";

class Fault : public FaultTest {};
INSTANTIATE_TEST_SUITE_P(, Fault, ::testing::ValuesIn(fault_layouts()), [](const auto& layout) { return layout.param.name; });

void pause(int time_ms) {
  std::this_thread::sleep_for(milliseconds(time_ms));
}

// Whoever is killed while it is stopped leaves the others inside a collective: they have all come to where they need it.
TEST_P(Fault, KilledInACollective) {
  Command command(baleen_arguments(train_arguments("run", with_ranks({"--set", endless}))));
  wait_for_rows(command, "run", 3);
  const auto ranks = ranks_of(command);
  kill(ranks[2], SIGSTOP);
  pause(300);
  kill(ranks[2], SIGKILL);
  const Course course = follow(command, ranks, {ranks[2]}, seconds(30));
  EXPECT_EQ(course.result.exit_code, 4) << course.result.error;
  EXPECT_NE(course.result.error.find(
                "the first failure: rank 2 was killed by SIGKILL (the out-of-memory killer or a person); its last action: step "),
            std::string::npos)
      << course.result.error;
  EXPECT_LT(course.noticed, 5);
  EXPECT_LT(course.gone, 15);
  print("SIGKILL of a rank, peers in a collective", course);
}

TEST_P(Fault, Stopped) {
  Command command(baleen_arguments(train_arguments("run", with_ranks({"--set", endless, "--set", "comm.timeout_s=4"}))));
  wait_for_rows(command, "run", 3);
  const auto ranks = ranks_of(command);
  kill(ranks[1], SIGSTOP);
  const Course course = follow(command, ranks, {ranks[1]}, seconds(60));
  EXPECT_EQ(course.result.exit_code, 4) << course.result.error;
  EXPECT_NE(course.result.error.find("the first failure: rank 1 hangs: no progress for "), std::string::npos) << course.result.error;
  EXPECT_NE(course.result.error.find("(the process is stopped, by SIGSTOP or a debugger); its last action: step "), std::string::npos)
      << course.result.error;
  EXPECT_LT(course.gone, 4 + 15);
  print("SIGSTOP of a rank, comm.timeout_s = 4", course);
}

TEST_P(Fault, GoneBeforeTheRendezvous) {
  Command command(baleen_arguments(train_arguments("run", with_ranks({}))));
  const auto ranks = ranks_of(command);
  kill(ranks[3], SIGKILL);
  const Course course = follow(command, ranks, {ranks[3]}, seconds(30));
  EXPECT_EQ(course.result.exit_code, 4) << course.result.error;
  EXPECT_NE(course.result.error.find("the first failure: rank 3 was killed by SIGKILL"), std::string::npos) << course.result.error;
  EXPECT_LT(course.gone, 15);
  print("a rank gone before the rendezvous", course);
}

TEST_P(Fault, WrongWorldSize) {
  // The layout and the number of ranks do not fit: said before anything starts.
  auto arguments =
      train_arguments("run", with_ranks({"--set", "parallelism.data=" + std::string(GetParam().name == std::string("Zero3") ? "4" : "1")}));
  *std::find(arguments.begin(), arguments.end(), "4") = "3";
  const CommandResult refused = run_baleen(arguments);
  EXPECT_EQ(refused.exit_code, 2) << refused.error;
  // Ranks that somebody else started believe in worlds of different sizes.
  auto lonely = train_arguments("run", with_ranks({"--set", "comm.timeout_s=5"}));
  lonely.erase(std::find(lonely.begin(), lonely.end(), "--ranks"), std::find(lonely.begin(), lonely.end(), "--ranks") + 2);
  std::vector<std::unique_ptr<Command>> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.push_back(std::make_unique<Command>(
        baleen_arguments(lonely), std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                                                     {"WORLD_SIZE", rank == 2 ? "8" : "4"},
                                                                     {"LOCAL_RANK", std::to_string(rank)},
                                                                     {"LOCAL_WORLD_SIZE", rank == 2 ? "8" : "4"},
                                                                     {"MASTER_ADDR", "127.0.0.1"},
                                                                     {"MASTER_PORT", std::to_string(20000 + getpid() % 20000)}}));
  const auto begin = std::chrono::steady_clock::now();
  std::string said;
  Course course;
  for (auto& rank : ranks) {
    course.result = rank->wait(seconds(40));
    EXPECT_TRUE(course.result.exit_code == 2 || course.result.exit_code == 4) << course.result.error;
    if (course.noticed == 0) course.noticed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    said += course.result.error;
  }
  course.gone = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  course.result.exit_code = refused.exit_code;
  EXPECT_NE(said.find("did not come: 2"), std::string::npos) << said;
  print("wrong world size (torchrun's variables, comm.timeout_s = 5)", course);
}

TEST_P(Fault, DamagedShard) {
  const auto settings = with_ranks({"--set", "training.steps=6", "--set", "checkpoint.every=3", "--set", "checkpoint.keep=9"});
  ASSERT_EQ(train("whole", settings).exit_code, 0);
  for (const bool truncated : {true, false}) {
    fs::remove_all(folder / "run");
    fs::copy(folder / "whole", folder / "run", fs::copy_options::recursive);
    const fs::path shard =
        *std::find_if(fs::directory_iterator(fs::path(folder / "run") / "checkpoints/step_00000006"), fs::directory_iterator(),
                      [](const auto& entry) { return entry.path().filename().string().starts_with("optimizer_00001"); });
    std::string bytes = read_text(shard);
    if (truncated)
      bytes.resize(bytes.size() - 1000);
    else
      bytes[bytes.size() - 500] = static_cast<char>(bytes[bytes.size() - 500] ^ 1);
    write_text(shard, bytes);
    auto further = settings;
    further.insert(further.end(), {"--set", "training.steps=8"});
    const CommandResult resumed = train("run", further);
    EXPECT_EQ(resumed.exit_code, 0) << resumed.error;
    EXPECT_NE(resumed.error.find("step_00000006 cannot be used and is passed over"), std::string::npos) << resumed.error;
    EXPECT_NE(resumed.error.find(shard.filename().string()), std::string::npos) << resumed.error;
    EXPECT_NE(resumed.error.find("resumed from step 3"), std::string::npos) << resumed.error;
    EXPECT_EQ(record("run").substr(0, record("whole").size()), record("whole"));
    EXPECT_EQ(weights("run", "step_00000006"), weights("whole", "step_00000006"));
    EXPECT_TRUE(fs::exists(fs::path(folder / "run") / "checkpoints/step_00000006.damaged"));
    print(truncated ? "a truncated shard" : "a bit flipped in a shard", {resumed, 0, 0},
          "steps since the checkpoint before, computed again");
  }
  // Where no checkpoint can be read nothing begins anew by itself.
  for (const char* step : {"step_00000003", "step_00000006"})
    fs::remove(fs::path(folder / "whole") / "checkpoints" / step / "manifest.json");
  const CommandResult none = train("whole", settings);
  EXPECT_EQ(none.exit_code, 3) << none.error;
}

TEST_P(Fault, FullDisk) {
  const auto settings = with_ranks({"--set", endless, "--set", "checkpoint.every=2", "--set", "checkpoint.keep=3"});
  fs::create_directories(folder / "small");
  // Room for a checkpoint and a half: by its length the second does not fit.
  if (::mount("tmpfs", (folder / "small").c_str(), "tmpfs", 0, "size=640k") != 0)
    GTEST_SKIP() << "file systems may not be mounted here: " << std::strerror(errno);
  struct Unmount {
    std::string path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{folder / "small"};
  const auto begin = std::chrono::steady_clock::now();
  Course course;
  course.result = train("small", settings);
  course.noticed = course.gone = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(course.result.exit_code, 3) << course.result.error;
  EXPECT_TRUE(course.result.error.find("not enough disk space") != std::string::npos ||
              course.result.error.find("No space left on device") != std::string::npos)
      << course.result.error;
  const auto kept = checkpoint::list_checkpoints(folder / "small");
  ASSERT_FALSE(kept.empty());
  EXPECT_EQ(checkpoint::CheckpointReader(kept.back().directory).verify(), std::vector<std::string>());
  print("a full disk (tmpfs), from the start of the run", course, "steps since the checkpoint before");
}

// With a rate of 0 the weights stay what they are, so that a rank's own can be found in its memory.
TEST_P(Fault, NotANumberInOneRanksMemory) {
  const std::vector<std::string> still{"--set", "optimizer.lr=0", "--set", "checkpoint.every=0"};
  auto begin = with_ranks(still), go_on = begin;
  begin.insert(begin.end(), {"--set", "training.steps=0"});
  go_on.insert(go_on.end(), {"--set", endless});
  ASSERT_EQ(train("run", begin).exit_code, 0);
  const int rank = 1;
  const auto [bytes, name] = own_weights("run", "step_00000000", rank, "mlp");
  Command command(baleen_arguments(train_arguments("run", go_on)));
  wait_for_rows(command, "run", 2);
  const auto ranks = ranks_of(command);
  std::string damaged = bytes;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(damaged.data() + 8, &nan, sizeof nan);
  const int places = change_memory(ranks, rank, bytes, damaged);
  if (places < 0) GTEST_SKIP() << "memory of other processes may not be written here";
  EXPECT_GE(places, 1);
  const Course course = follow(command, ranks, {}, seconds(30));
  EXPECT_EQ(course.result.exit_code, 5) << course.result.error;
  EXPECT_NE(course.result.error.find("first parameter with a non-finite gradient: "), std::string::npos) << course.result.error;
  EXPECT_NE(course.result.error.find("not finite themselves: model.layers."), std::string::npos) << course.result.error;
  EXPECT_NE(course.result.error.find("(rank 1)"), std::string::npos) << course.result.error;
  print("NaN in one rank's memory", course);
}

TEST_P(Fault, OneReplicasWeightFlipped) {
  std::vector<std::string> still{"--set", "optimizer.lr=0", "--set", "checkpoint.every=0", "--set", "fault.replica_check_every=2"};
  const bool zero3 = GetParam().name == std::string("Zero3");
  if (zero3) still.insert(still.end(), {"--set", "parallelism.replicate=2"});
  auto begin = with_ranks(still), go_on = begin;
  begin.insert(begin.end(), {"--set", "training.steps=0"});
  go_on.insert(go_on.end(), {"--set", endless});
  ASSERT_EQ(train("run", begin).exit_code, 0);
  // Ranks of tensor parallelism hold the norms' weights in common, all 1.
  std::string bytes(64, '\0');
  for (std::size_t i = 0; i < bytes.size(); i += 4) std::memcpy(bytes.data() + i, "\x00\x00\x80\x3f", 4);
  if (zero3) bytes = own_weights("run", "step_00000000", 1, "mlp").first;
  Command command(baleen_arguments(train_arguments("run", go_on)));
  wait_for_rows(command, "run", 2);
  const auto ranks = ranks_of(command);
  std::string damaged = bytes;
  damaged[16] = static_cast<char>(damaged[16] ^ 1);
  const int places = change_memory(ranks, 3, bytes, damaged);
  if (places < 0) GTEST_SKIP() << "memory of other processes may not be written here";
  EXPECT_GE(places, 1);
  const Course course = follow(command, ranks, {}, seconds(30));
  EXPECT_EQ(course.result.exit_code, 5) << course.result.error;
  EXPECT_NE(course.result.error.find("the replicas differ: rank 3 no longer holds"), std::string::npos) << course.result.error;
  print("a bit flipped in one replica's weights, compared every 2 steps", course, "steps since the last checkpoint");
}

TEST_P(Fault, CorruptData) {
  std::string tokens = read_text(folder / "corpus.bin");
  for (std::size_t at = 1024 + 4000; at < 1024 + 4400; ++at) tokens[at] = '\xee';
  write_text(folder / "corpus.bin", tokens);
  const auto begin = std::chrono::steady_clock::now();
  Course course;
  course.result = train("run", with_ranks({"--set", endless}));
  course.noticed = course.gone = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(course.result.exit_code, 3) << course.result.error;
  EXPECT_NE(course.result.error.find("corpus.bin"), std::string::npos) << course.result.error;
  print("token ids that the vocabulary lacks", course);
}

TEST_P(Fault, DataCutShortInUse) {
  Command command(baleen_arguments(train_arguments("run", with_ranks({"--set", endless}))));
  wait_for_rows(command, "run", 3);
  const auto ranks = ranks_of(command);
  fs::resize_file(folder / "corpus.bin", 1024 + 200);
  const Course course = follow(command, ranks, {}, seconds(30));
  EXPECT_EQ(course.result.exit_code, 3) << course.result.error;
  EXPECT_NE(course.result.error.find("corpus.bin"), std::string::npos) << course.result.error;
  print("a token file cut short in use", course, "steps since the last checkpoint");
}

TEST_P(Fault, AskedToStop) {
  const std::vector<std::string> ten{"--set", "training.steps=40"};
  ASSERT_EQ(train("whole", with_ranks(ten)).exit_code, 0);
  Command command(baleen_arguments(train_arguments("run", with_ranks(ten))));
  wait_for_rows(command, "run", 3);
  const auto ranks = ranks_of(command);
  command.signal(SIGTERM);
  const Course course = follow(command, ranks, {}, seconds(30));
  EXPECT_EQ(course.result.exit_code, 75) << course.result.error;
  ASSERT_EQ(train("run", with_ranks(ten)).exit_code, 0);
  EXPECT_EQ(record("run"), record("whole"));
  EXPECT_EQ(weights("run", "step_00000040"), weights("whole", "step_00000040"));
  print("SIGTERM", course);
}

TEST_P(Fault, OutOfMemoryOnOneRank) {
  Command command(baleen_arguments(train_arguments("run", with_ranks({"--set", endless}))));
  const auto ranks = ranks_of(command);
  const rlimit limit{rlim_t{160} << 20, rlim_t{160} << 20};
  ASSERT_EQ(prlimit(ranks[2], RLIMIT_AS, &limit, nullptr), 0);
  const Course course = follow(command, ranks, {}, seconds(30));
  EXPECT_EQ(course.result.exit_code, 6) << course.result.error;
  EXPECT_NE(course.result.error.find("the first failure: rank 2 failed with exit code 6"), std::string::npos) << course.result.error;
  EXPECT_LT(course.gone, 15);
  print("a rank out of memory (RLIMIT_AS)", course);
}

// A rank that gets a third of its time takes three times as long for what is its own.
TEST_P(Fault, SlowRank) {
  // Layers that take milliseconds: a rank that is stopped is then stopped at work, not while it waits.
  Command command(baleen_arguments(train_arguments("run", with_ranks({"--set", endless, "--set", "training.sequence_length=256", "--set",
                                                                      "model.hidden_size=128", "--set", "model.intermediate_size=512"}))));
  const auto ranks = ranks_of(command);
  wait_for_rows(command, "run", 2);
  const auto begin = std::chrono::steady_clock::now();
  const auto named = [&] { return read_text(fs::path(folder / "run") / "log.txt").find("rank 1 is slow: ") != std::string::npos; };
  while (command.running() && !named() && std::chrono::steady_clock::now() - begin < seconds(60)) {
    kill(ranks[1], SIGSTOP);
    pause(20);
    kill(ranks[1], SIGCONT);
    pause(10);
  }
  command.signal(SIGTERM);
  const CommandResult result = command.wait();
  EXPECT_EQ(result.exit_code, 75) << result.error;
  EXPECT_NE(result.error.find("rank 1 is slow: "), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("what takes longest beyond theirs is the "), std::string::npos) << result.error;
  print("a slow rank", {result, 0, 0});
}

}  // namespace
}  // namespace baleen::testing
