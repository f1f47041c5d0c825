// One operation that MPI carries out behind its caller.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/mpi/library.h"
#include "comm/operation.h"
#include "comm/ring/partition.h"

namespace baleen::mpi {

// Memory that one operation leaves to the next: large blocks go back to the system when they are freed, and come with a fault a page.
struct Spare {
  std::vector<std::byte> memory;
};

// Where an operation takes place.
struct Link {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  // MPI counts are ints: longer messages go in pieces of this many elements, or as one element of a larger type.
  std::size_t largest_count = std::size_t{1} << 30;
  std::shared_ptr<Spare> spare;
};

class Transfer {
 public:
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Lets MPI make progress; true once the result is in its place. Throws Error(rank_failed) when MPI reports a failure.
  virtual bool test() = 0;

 protected:
  Transfer() = default;
};

// Starts the operation, whose buffers, like `link`, must live until test() was true. Throws Error(rank_failed) when MPI refuses.
std::unique_ptr<Transfer> start_transfer(const Link& link, const Operation& operation);

// The slices of an all_reduce or reduce_scatter.
Partition partition_of_sum(const Operation& operation, int size);

// MPI_Testall; what goes wrong is said to be the operation's. `statuses`: as many as requests, or none.
bool test_all(std::span<MPI_Request> requests, const Operation& operation, std::span<MPI_Status> statuses = {});

// A longer message than expected is an error of MPI's own; throws Error(rank_failed) where a shorter one came.
void check_length(const MPI_Status& status, std::size_t bytes, const Operation& operation);

// Bytes that a rank sends at least, by the table in comm/README.md (MPI does not say what it does send).
std::size_t bytes_on_the_wire(const Link& link, const Operation& operation);

}  // namespace baleen::mpi
