// A communicator that does nothing: each operation is over when what it waits for is. For tests that look at a few operations only.
#pragma once

#include <utility>

#include "comm/communicator.h"

namespace baleen::testing {

class IdleCommunicator : public Communicator {
 public:
  IdleCommunicator(int rank, int size, std::string name) : Communicator(rank, size, std::move(name)) {}
  void abort(const std::string&) override {}

 protected:
  Event do_all_reduce(const void*, void*, std::size_t, DType, ReduceOp, Event after) override { return after; }
  Event do_reduce_scatter(const void*, void*, std::size_t, DType, ReduceOp, Event after) override { return after; }
  Event do_all_gather(const void*, void*, std::size_t, DType, Event after) override { return after; }
  Event do_broadcast(void*, std::size_t, DType, int, Event after) override { return after; }
  Event do_send(const void*, std::size_t, DType, int, Event after) override { return after; }
  Event do_recv(void*, std::size_t, DType, int, Event after) override { return after; }
  Event do_barrier(Event after) override { return after; }
  Event do_all_to_all(const void*, void*, std::size_t, DType, Event after) override { return after; }
};

}  // namespace baleen::testing
