// What a shell may do to a program: outputs that cannot be written, closed files, limits, names of any length.
#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/paths.h"
#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

class Surroundings : public TrainingFixture {
 protected:
  // A line of the shell, in which $B is the program.
  static CommandResult shell(const std::string& line) { return run_command({"/bin/bash", "-c", line}, {{"B", baleen_binary().string()}}); }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::string joined(const std::vector<std::string>& arguments) {
    std::string line = "$B";
    for (const std::string& argument : arguments) line += " '" + argument + "'";
    return line;
  }
};

TEST_F(Surroundings, OutputThatCannotBeWrittenIsNoSuccess) {
  const CommandResult result = shell("$B doctor --json >/dev/full");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.error.find("standard output cannot be written"), std::string::npos) << result.error;
}

TEST_F(Surroundings, ClosedStandardFilesAreNobodyElses) {
  const std::string line = joined(train_arguments("run", {"--set", "training.steps=3"})) + " <&- >&- 2>&-";
  EXPECT_EQ(shell(line).exit_code, 0);
  const std::string lock = text_of(folder / "run/.lock");
  EXPECT_EQ(lock.find("step"), std::string::npos) << lock;
  EXPECT_EQ(rows("run").size(), 3u);
}

TEST_F(Surroundings, FilesThatMayNotGrowHaveAMessage) {
  const CommandResult result = shell("ulimit -f 1; " + joined(train_arguments("run", {"--set", "training.steps=3"})));
  EXPECT_EQ(result.signal, 0);
  EXPECT_NE(result.error.find("File too large"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("what to do"), std::string::npos) << result.error;
}

TEST_F(Surroundings, NamesOfAnyLengthHaveAMessage) {
  const std::string name(300, 'n');
  for (const std::string command : {"inspect ", "eval ", "export "}) {
    const CommandResult result =
        shell("$B " + command + name + (command == "eval " ? " --data x.bin" : "") + (command == "export " ? " --out out" : ""));
    EXPECT_EQ(result.exit_code, 3) << command << result.error;
    EXPECT_NE(result.error.find("File name too long"), std::string::npos) << result.error;
    EXPECT_NE(result.error.find("what to do"), std::string::npos) << result.error;
  }
}

TEST_F(Surroundings, PipesAndFoldersAreNoFiles) {
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(shell("mkfifo " + pipe).exit_code, 0);
  const CommandResult config = shell("timeout 20 $B train " + pipe), data = shell("timeout 20 $B inspect " + pipe);
  EXPECT_EQ(config.exit_code, 2) << config.error;
  EXPECT_EQ(data.exit_code, 3) << data.error;
  for (const CommandResult& result : {config, data}) EXPECT_NE(result.error.find("not a regular file"), std::string::npos) << result.error;
  const CommandResult directory = train("run", {"--set", "data.train=" + folder.path().string()});
  EXPECT_EQ(directory.exit_code, 3) << directory.error;
  EXPECT_NE(directory.error.find("name a file, not a folder"), std::string::npos) << directory.error;
}

TEST_F(Surroundings, NumbersThatAreNoneAreRefused) {
  for (const std::string option :
       {"--temperature nan", "--top-p nan", "--temperature -1", "--top-p 1.5", "--seed -1", "--seed 99999999999999999999999", "--seed 1x"})
    EXPECT_EQ(shell("$B generate x --prompt Once " + option).exit_code, 2) << option;
  const CommandResult result = shell("$B generate x --prompt Once --temperature 0.5 --top-p 1 --seed 18446744073709551615");
  EXPECT_EQ(result.exit_code, 3) << result.error;  // there is no x
}

TEST_F(Surroundings, MoreRanksThanThereCanBeAreRefused) {
  std::vector<std::string> degrees;
  for (const char* const axis : {"tensor", "replicate", "context", "pipeline"})
    for (const std::string& word : {std::string("--set"), std::string("parallelism.") + axis + "=65536"}) degrees.push_back(word);
  const CommandResult result = train("run", degrees);
  EXPECT_EQ(result.exit_code, 2) << result.error;
  EXPECT_NE(result.error.find("smaller degrees"), std::string::npos) << result.error;
  const CommandResult layout = shell("$B verify x.toml --layouts 'dp=65536,tp=65536' --ranks 2");
  EXPECT_EQ(layout.exit_code, 2) << layout.error;
}

TEST_F(Surroundings, MoreRanksThanShareMemoryAreRefusedOnceAndBeforeTheyStart) {
  const auto refused = [](const CommandResult& result, const std::vector<std::string>& words) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.error.find("rank 0"), std::string::npos) << result.error;
    EXPECT_EQ(result.error.find("the first failure"), std::string::npos) << result.error;
    for (const std::string& word : words) EXPECT_NE(result.error.find(word), std::string::npos) << word << " is not in: " << result.error;
  };
  const CommandResult trained = train("run", {"--ranks", "66", "--set", "training.global_batch_size=132"});
  refused(trained, {"66 ranks on one machine are more than the 64", "without --ranks", "[comm] backend"});
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  refused(run_baleen({"verify", folder / "config.toml", "--all", "--ranks", "200"}), {"200 ranks on one machine", "without --ranks"});
  refused(run_baleen({"bench", "comm", "--op", "all_reduce", "--ranks", "65"}), {"65 ranks on one machine", "--backend \""});
}

TEST_F(Surroundings, ASaveWithoutRoomSaysWhatGivesRoom) {
  const std::string small = folder / "small", fill = small + "/fill";
  std::filesystem::create_directory(small);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=4m") != 0) GTEST_SKIP() << "this user may not mount a tmpfs";
  const std::vector<std::string> more{"--ranks", "2", "--set", "training.steps=100000", "--set", "checkpoint.every=0"};
  Command command(baleen_arguments(train_arguments("small/run", more)));
  wait_for_rows(command, "small/run", 3);
  // Never quite full: the small files that grow with each step still have room.
  shell("head -c " + std::to_string(std::filesystem::space(small).available - (64 << 10)) + " /dev/zero >" + fill);
  command.signal(SIGTERM);
  const CommandResult result = command.wait();
  ::umount2(small.c_str(), MNT_DETACH);
  EXPECT_EQ(result.exit_code, 3) << result.error;
  EXPECT_NE(result.error.find("not enough disk space"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("by hand"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("rank 1 ends: another rank could not start a checkpoint\n"), std::string::npos) << result.error;
  EXPECT_EQ(result.error.find("()"), std::string::npos) << result.error;
}

TEST_F(Surroundings, AFinishedRunNeedsNoRoom) {
  const std::string small = folder / "small", fill = small + "/fill";
  std::filesystem::create_directory(small);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=4m") != 0) GTEST_SKIP() << "this user may not mount a tmpfs";
  const std::vector<std::string> three{"--set", "training.steps=3"};
  const CommandResult first = train("small/run", three);
  shell("head -c 8m /dev/zero >" + fill + "; truncate -s -100k " + fill);  // room for the small files that each start writes
  const CommandResult again = train("small/run", three), further = train("small/run", {"--set", "training.steps=6"});
  ::umount2(small.c_str(), MNT_DETACH);
  EXPECT_EQ(first.exit_code, 0) << first.error;
  EXPECT_EQ(again.exit_code, 0) << again.error;
  EXPECT_EQ(further.exit_code, 3) << further.error;
}

}  // namespace
}  // namespace baleen::testing
