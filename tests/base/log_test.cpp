#include "base/log.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <barrier>
#include <fstream>
#include <thread>
#include <vector>

#include "support/command.h"

namespace baleen {
namespace {

constexpr int threads = 8;

// Calls each_thread(index) on threads that begin at once.
template <class EachThread>
void at_once(const EachThread& each_thread) {
  std::barrier<> begin(threads);
  std::vector<std::jthread> all;
  for (int i = 0; i < threads; ++i)
    all.emplace_back([&, i] {
      begin.arrive_and_wait();
      each_thread(i);
    });
}

// Ranks that are threads write their first line at once.
TEST(Log, TheFirstLineMayComeFromAnyThread) {
  for (int round = 0; round < 50; ++round) {
    spdlog::drop("baleen");
    at_once([](int i) { EXPECT_NO_THROW(log::debug("thread {}", i)); });
  }
}

TEST(Log, AFileIsAddedWhileOthersWrite) {
  const testing::TemporaryFolder folder;
  const std::string path = (folder.path() / "log.txt").string();
  constexpr int lines = 200;
  at_once([&](int i) {
    if (i == 0) log::add_file(path, 3, 4);
    for (int line = 0; line < lines; ++line) log::debug("thread {} line {}", i, line);
  });
  log::info("the last one");  // reaches the file with all before it
  spdlog::drop("baleen");
  std::ifstream file(path);
  int of_first = 0;
  std::string line, last;
  while (std::getline(file, line)) {
    of_first += line.find("thread 0 line") != std::string::npos;
    last = line;
  }
  EXPECT_EQ(of_first, lines);
  EXPECT_NE(last.find(" I [rank 3] the last one"), std::string::npos) << last;
}

}  // namespace
}  // namespace baleen
