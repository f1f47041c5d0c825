#include "comm/shm/shm_communicator.h"

#include <utility>

#include "comm/shm/point_to_point.h"

namespace baleen::shm {

ShmCommunicator::ShmCommunicator(std::unique_ptr<Tenancy> tenancy, const std::vector<int>& members, int rank, const std::string& name,
                                 std::uint64_t signature, std::chrono::milliseconds timeout)
    : WorkerCommunicator(rank, static_cast<int>(members.size()), name),
      tenancy_(std::move(tenancy)),
      port_(tenancy_->region(), tenancy_->window(), members, rank, name, timeout, bytes_sent_),
      collectives_(port_, tenancy_->region()->heap()) {
  port_.join(signature);
  start_worker("comm");
}

void ShmCommunicator::run_point_to_point(Shared first) {
  PointToPoint transfers(port_);
  transfers.add(std::move(first));
  auto failure = attempt([&] {
    const BusyTime busy(*this);
    while (!transfers.empty()) {
      transfers.arm();  // before looking
      while (Shared more = next_point_to_point()) transfers.add(std::move(more));
      for (const Shared& complete : transfers.advance()) finish(complete);
      if (!transfers.empty() && !transfers.moved()) transfers.idle();
    }
  });
  if (!failure) return;
  port_.abort_group(failure->what_is_wrong());
  for (const Shared& unfinished : transfers.take_all()) finish(unfinished, failure);
}

}  // namespace baleen::shm
