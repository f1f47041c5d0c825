// An operation that is one of MPI's own: its nonblocking requests, and what remains to be done when they are complete.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/mpi/transfer.h"

namespace baleen::mpi {

// Everything but sums of several ranks, which are RingSum and GatheredSum.
class LibraryTransfer final : public Transfer {
 public:
  LibraryTransfer(const Link& link, const Operation& operation);
  bool test() override;

 private:
  void start();
  void start_all_gather();
  void start_all_to_all();
  MPI_Request* request();
  void copy_alone() const;

  const Link& link_;
  const Operation& operation_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::byte> scratch_;
};

}  // namespace baleen::mpi
