// A communicator of the built-in backend: a queue, and a worker thread that runs it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/queued_communicator.h"
#include "comm/shm/port.h"
#include "comm/shm/shared_collectives.h"
#include "comm/shm/tenancy.h"

namespace baleen::shm {

class ShmCommunicator final : public WorkerCommunicator {
 public:
  // Waits until all `members` (world ranks) have made theirs in the same window.
  ShmCommunicator(std::unique_ptr<Tenancy> tenancy, const std::vector<int>& members, int rank, const std::string& name,
                  std::uint64_t signature, std::chrono::milliseconds timeout);
  // Operations still pending are abandoned, which aborts this communicator for its other members.
  ~ShmCommunicator() override { stop_worker(); }

  void abort(const std::string& reason) override { port_.abort_group(reason); }
  std::string failure() const override { return port_.abort_reason(); }

 protected:
  RingTransport& transport() override { return port_; }
  void begin(const OperationTag& tag) override { port_.begin(tag); }
  void check_aborted() const override { port_.check_aborted(); }
  bool run_collective_itself(const Request& operation) override { return collectives_.run(operation); }
  bool callers_own(const Request& operation) const override { return !port_.crowded() && collectives_.fits_notes(operation); }
  bool run_at_once(const Request& operation) override { return collectives_.run_at_once(operation); }
  void run_point_to_point(Shared first) override;
  void wake() override { port_.wake(); }
  int world_rank() const override { return port_.world_rank(rank()); }

 private:
  std::unique_ptr<Tenancy> tenancy_;  // ends last
  Port port_;
  SharedCollectives collectives_;
};

}  // namespace baleen::shm
