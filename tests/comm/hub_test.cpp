// What a rank's connections do with messages that no rank sends.
#include "comm/tcp/hub.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

namespace baleen {
namespace {

// A message's header as it travels.
struct Header {
  std::uint32_t magic = 0x4d4c4142, communicator = 7, kind = 1, unused = 0;
  OperationTag tag;
  std::uint64_t bytes = 0;
};

OperationTag tag_of(OperationKind kind, std::uint64_t count) {
  OperationTag out;
  out.kind = static_cast<std::uint8_t>(kind);
  out.dtype = static_cast<std::uint8_t>(DType::f32);
  out.count = count;
  return out;
}

class HubTest : public ::testing::Test {
 protected:
  HubTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    peer = Descriptor(ends[1]);
    std::vector<Descriptor> peers(2);
    peers[1] = Descriptor(ends[0]);
    hub = std::make_unique<tcp::Hub>(0, std::move(peers));
  }
  // Rank 1's words; true when rank 0 then takes it for gone.
  bool is_shown_out(const Header& header) {
    EXPECT_EQ(send(peer.get(), &header, sizeof header, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof header));
    for (int attempt = 0; attempt < 200 && !hub->gone(1); ++attempt) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return hub->gone(1);
  }

  Descriptor peer;
  std::unique_ptr<tcp::Hub> hub;
};

TEST_F(HubTest, AMessageComesWhole) {
  Header header;
  header.tag = tag_of(OperationKind::send, 2);
  header.bytes = 8;
  std::byte bytes[sizeof header + 8]{};
  std::memcpy(bytes, &header, sizeof header);
  bytes[sizeof header] = std::byte{42};
  ASSERT_EQ(send(peer.get(), bytes, sizeof bytes, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof bytes));
  const tcp::Message* message = nullptr;
  for (int attempt = 0; attempt < 500 && message == nullptr; ++attempt) {
    message = hub->front(1, 7);
    if (message == nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->tag, header.tag);
  ASSERT_EQ(message->bytes.size(), 8u);
  EXPECT_EQ(message->bytes[0], std::byte{42});
  EXPECT_FALSE(hub->gone(1));
}

TEST_F(HubTest, APieceOfACollectiveHasALimit) {
  Header header;
  header.tag = tag_of(OperationKind::all_reduce, std::size_t{16} << 20);
  header.bytes = std::size_t{64} << 20;
  EXPECT_TRUE(is_shown_out(header));
}

TEST_F(HubTest, AMessagesLengthFollowsFromItsOperation) {
  Header header;
  header.tag = tag_of(OperationKind::send, 2);
  header.bytes = std::size_t{64} << 20;
  EXPECT_TRUE(is_shown_out(header));
}

// Longer than a vector can be: of what memory lacks, a sanitizer makes an error of its own.
TEST_F(HubTest, AMessageLongerThanMemoryEndsTheConnection) {
  Header header;
  header.tag = tag_of(OperationKind::send, std::uint64_t{1} << 61);
  header.bytes = std::uint64_t{1} << 63;
  EXPECT_TRUE(is_shown_out(header));
}

TEST_F(HubTest, AReasonHasALimit) {
  Header header;
  header.kind = 2;
  header.bytes = std::size_t{64} << 20;
  EXPECT_TRUE(is_shown_out(header));
}

TEST_F(HubTest, AnUnknownKindEndsTheConnection) {
  Header header;
  header.kind = 3;
  EXPECT_TRUE(is_shown_out(header));
}

}  // namespace
}  // namespace baleen
