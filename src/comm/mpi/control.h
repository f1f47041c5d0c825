// Messages of a few hundred bytes between the threads that run MPI, beside the operations: a failure and its reason, and the question where
// another rank is, so that an error can name the rank that everybody waits for.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include "comm/mpi/library.h"
#include "comm/operation.h"

namespace baleen::mpi {

// Communicator 0: the world, whose operations are the making of communicators.
struct ControlMessage {
  enum class Kind : std::uint32_t { abort = 1, question = 2, answer = 3 };
  Kind kind = Kind::abort;
  std::uint32_t communicator = 0;
  std::uint64_t begun = 0;  // answer: operations that the rank has begun there
  OperationTag tag;         // answer: the one it is in; kind none: in none
  std::int32_t from = 0;    // world rank
  std::array<char, 996> text{};
};

class Control {
 public:
  // Collective over the world (MPI_Comm_dup).
  Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  // Withdraws the standing receive; to be called before MPI_Finalize, not after a failure.
  void close();

  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  void send(int to, ControlMessage message);
  void send_all(const ControlMessage& message);
  // The next message that has come, if any.
  std::optional<ControlMessage> receive();
  // Lets what was sent leave this process, for at most `limit`.
  void flush(std::chrono::milliseconds limit);

 private:
  struct Outgoing {
    ControlMessage message;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  void post();
  void forget_sent();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  ControlMessage incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::list<Outgoing> outgoing_;
};

}  // namespace baleen::mpi
