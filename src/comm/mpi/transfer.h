// One operation that MPI carries out: its nonblocking requests, and what remains to be done when they are complete.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/mpi/library.h"
#include "comm/operation.h"

namespace baleen::mpi {

// Where an operation takes place.
struct Link {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  // MPI counts are ints: longer messages go in pieces of this many elements, or as one element of a larger type.
  std::size_t largest_count = std::size_t{1} << 30;
  const Operators* operators = nullptr;
};

// Sums: fp32, fp64 and integers in the library's order, which depends on message size and number of ranks. bf16 is widened to fp32 before
// and rounded once after, so it travels as fp32. Averages are sums times 1/size.
class Transfer {
 public:
  // Starts the operation, whose buffers and own memory must live until test() was true. Throws Error(rank_failed) when MPI refuses.
  Transfer(const Link& link, const Operation& operation);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Lets MPI make progress; true once the result is in its place.
  bool test();

 private:
  void start();
  void start_all_reduce();
  void start_reduce_scatter();
  void start_all_gather();
  void start_all_to_all();
  MPI_Request* request();
  // From the sum in `wire` (elements that reductions are made of) to `to`, averaged and rounded where that is asked for.
  void write_result(const void* wire, void* to) const;
  bool needs_writing() const { return operation_.dtype == DType::bf16 || operation_.op == ReduceOp::avg; }
  void copy_alone() const;
  void check_length(const MPI_Status& status) const;

  const Link& link_;
  const Operation& operation_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::byte> scratch_;
  const void* sum_ = nullptr;  // a result that is not yet where it belongs
};

// Bytes that a rank sends at least, by the table in comm/README.md (MPI does not say what it does send).
std::size_t bytes_on_the_wire(const Operation& operation, int rank, int size);

}  // namespace baleen::mpi
