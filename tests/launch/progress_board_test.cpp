// What a rank says on the board is what the launcher reads there, whoever is killed while writing.
#include "launch/progress_board.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"

namespace baleen {
namespace {

TEST(ProgressBoard, IsReadByWhoeverHasItsDescriptor) {
  const auto board = ProgressBoard::create(3);
  EXPECT_EQ(board->read(1).when, ProgressBoard::Clock::time_point());
  const auto other = ProgressBoard::attach(Descriptor(dup(board->descriptor())), 3);
  const auto before = ProgressBoard::Clock::now();
  other->report(1, "step 7: backward pass of model.layers.3", true);
  const ProgressBoard::Entry entry = board->read(1);
  EXPECT_EQ(entry.action, "step 7: backward pass of model.layers.3");
  EXPECT_TRUE(entry.limited);
  EXPECT_GE(entry.when, before);
  EXPECT_EQ(board->read(2).action, "");
  other->report(1, std::string(1000, 'x'), false);
  EXPECT_EQ(board->read(1).action, std::string(111, 'x'));
  EXPECT_FALSE(board->read(1).limited);
}

TEST(ProgressBoard, OfAnotherSizeIsRefused) {
  const auto board = ProgressBoard::create(3);
  EXPECT_THROW(ProgressBoard::attach(Descriptor(dup(board->descriptor())), 4), Error);
  EXPECT_THROW(ProgressBoard::attach(Descriptor(), 3), Error);
}

// Under ThreadSanitizer this is also the proof that reading while somebody writes is no race.
TEST(ProgressBoard, IsNeverReadHalf) {
  const auto board = ProgressBoard::create(1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) {
      board->report(0, std::string(40, static_cast<char>('a' + i % 26)), true);
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // a rank computes in between
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    const std::string action = board->read(0).action;
    if (action.empty()) continue;
    EXPECT_EQ(action, std::string(40, action[0]));
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace baleen
