#include "comm/tcp/tcp_world.h"

#include <algorithm>

#include "base/error.h"
#include "comm/tcp/tcp_communicator.h"
#include "launch/tcp_mesh.h"

namespace baleen {
namespace {

class TcpWorld final : public World {
 public:
  TcpWorld(const TcpMeeting& meeting, std::chrono::milliseconds timeout)
      : timeout_(timeout), hub_(std::make_shared<tcp::Hub>(meeting.rank, connect_mesh(meeting))) {}

  int rank() const override { return hub_->rank(); }
  int size() const override { return hub_->size(); }
  std::string backend() const override { return "tcp"; }
  std::unique_ptr<Communicator> create_communicator(const std::vector<int>& ranks, const std::string& name) override {
    const std::uint32_t id = ++calls_;
    if (ranks.empty()) return nullptr;
    BALEEN_CHECK(std::is_sorted(ranks.begin(), ranks.end()) && std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end(), "name", name);
    BALEEN_CHECK(ranks.front() >= 0 && ranks.back() < size(), "first", ranks.front(), "last", ranks.back(), "world", size());
    const auto here = std::find(ranks.begin(), ranks.end(), rank());
    BALEEN_CHECK(here != ranks.end(), "rank", rank(), "is not in its own group", name);
    return std::make_unique<tcp::TcpCommunicator>(hub_, id, ranks, static_cast<int>(here - ranks.begin()), name, timeout_);
  }
  void abort(const std::string& reason) override { hub_->abort(0, reason); }

 private:
  std::chrono::milliseconds timeout_;
  std::shared_ptr<tcp::Hub> hub_;
  std::uint32_t calls_ = 0;
};

}  // namespace

std::unique_ptr<World> create_tcp_world(const TcpMeeting& meeting, std::chrono::milliseconds timeout) {
  return std::make_unique<TcpWorld>(meeting, timeout);
}

}  // namespace baleen
