// Connections among ranks of one machine that has next to no free ports: what happens once in thousands of jobs happens here at once.
#include "launch/tcp_mesh.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "base/error.h"
#include "launch/tcp_socket.h"

namespace baleen {
namespace {

constexpr int first_port = 40000;

// Runs `body`, and the threads it starts, on a network of its own with `ports` ports for whoever asks for any. False when this process may
// not make one.
bool on_a_network_with(int ports, const std::function<void()>& body) {
  bool made = false;
  std::jthread([&] {
    if (unshare(CLONE_NEWNET) != 0) return;
    const Descriptor any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
    range << first_port << ' ' << first_port + ports - 1 << std::flush;
    made = ioctl(any.get(), SIOCSIFFLAGS, &loopback) == 0 && range.good();
    if (made) body();
  }).join();
  return made;
}

TcpMeeting meeting_at(int port, int size) {
  TcpMeeting out;
  out.address = "127.0.0.1";
  out.port = static_cast<std::uint16_t>(port);
  out.size = size;
  out.job = "job";
  out.build = "build";
  out.secret = "a secret of more than sixteen bytes";
  out.timeout = std::chrono::seconds(20);
  return out;
}

// Why the ranks could not connect; empty when they did.
std::string failure_to_connect(TcpMeeting meeting) {
  std::vector<std::future<std::vector<Descriptor>>> ranks;
  for (meeting.rank = meeting.size - 1; meeting.rank >= 0; --meeting.rank)
    ranks.push_back(std::async(std::launch::async, [meeting] { return connect_mesh(meeting); }));
  std::string why;
  for (auto& rank : ranks) try {
      rank.get();
    } catch (const Error& error) {
      why += error.what();
    }
  return why;
}

// Linux gives a listener an odd port of the range's lower half first.
TEST(TcpMesh, NoRankTakesThePortWhereAllMeet) {
  for (int round = 0; round < 12; ++round) {
    std::string why;
    if (!on_a_network_with(24, [&] { why = failure_to_connect(meeting_at(first_port + 1 + 2 * (round % 6), 4)); }))
      GTEST_SKIP() << "a network of its own needs root";
    EXPECT_EQ(why, "");
  }
}

// A socket that calls its own port is connected without anybody having listened. Linux calls from even ports first.
TEST(TcpMesh, NobodyIsConnectedToHimself) {
  const bool made = on_a_network_with(4, [] {
    std::string why;
    const SocketAddress nobody = resolve("127.0.0.1", first_port, why).at(0);
    for (int call = 0; call < 50; ++call) {
      EXPECT_FALSE(connect_to(nobody, std::chrono::milliseconds(1000), why).valid());
      EXPECT_EQ(why, std::strerror(ECONNREFUSED));
    }
    EXPECT_TRUE(listen_on(nobody).valid());  // nor has such a call left the port taken
  });
  if (!made) GTEST_SKIP() << "a network of its own needs root";
}

// Rank 0's port, still held by another for a moment.
TEST(TcpMesh, APortThatGetsFreeIsWaitedFor) {
  std::string why;
  std::optional<Descriptor> holder(listen_on(resolve("127.0.0.1", 0, why).at(0)));
  const SocketAddress held = own_of(holder->get());
  std::jthread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    holder.reset();
  });
  const int port = ntohs(reinterpret_cast<const sockaddr_in*>(&held.value)->sin_port);
  EXPECT_EQ(failure_to_connect(meeting_at(port, 2)), "");
}

}  // namespace
}  // namespace baleen
