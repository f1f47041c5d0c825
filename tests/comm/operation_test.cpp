// Which messages may pass which.
#include "comm/operation.h"

#include <gtest/gtest.h>

#include <array>

namespace baleen {
namespace {

class Messages : public ::testing::Test {
 protected:
  Request send(int peer, std::size_t begin, std::size_t count) const {
    Request out;
    out.kind = OperationKind::send;
    out.from = memory.data() + begin;
    out.count = count;
    out.root = peer;
    return out;
  }
  Request recv(int peer, std::size_t begin, std::size_t count) {
    Request out;
    out.kind = OperationKind::recv;
    out.to = memory.data() + begin;
    out.count = count;
    out.root = peer;
    return out;
  }
  std::array<float, 16> memory{};
};

TEST_F(Messages, OfOneDirectionKeepTheirOrder) {
  EXPECT_TRUE(must_follow(send(1, 0, 4), send(1, 8, 4)));
  EXPECT_TRUE(must_follow(recv(1, 0, 4), recv(1, 8, 4)));
  EXPECT_FALSE(must_follow(send(1, 0, 4), send(2, 8, 4)));
  EXPECT_FALSE(must_follow(send(1, 0, 4), recv(1, 8, 4)));
}

TEST_F(Messages, ThatTouchEachOthersMemoryWait) {
  EXPECT_TRUE(must_follow(recv(1, 0, 4), send(2, 3, 4)));
  EXPECT_TRUE(must_follow(send(2, 3, 4), recv(1, 0, 4)));
  EXPECT_TRUE(must_follow(recv(1, 0, 4), recv(2, 3, 4)));
  EXPECT_FALSE(must_follow(recv(1, 0, 4), recv(2, 4, 4)));  // side by side
  EXPECT_FALSE(must_follow(send(1, 0, 4), send(2, 0, 4)));  // both only read
}

TEST_F(Messages, OfNothingTouchNothing) {
  EXPECT_FALSE(must_follow(recv(1, 2, 0), recv(2, 0, 4)));
  EXPECT_FALSE(must_follow(recv(1, 0, 4), send(2, 2, 0)));
}

}  // namespace
}  // namespace baleen
