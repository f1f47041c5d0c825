#include "comm/mpi/control.h"

#include <thread>

namespace baleen::mpi {
namespace {

constexpr int control_tag = 2;

}  // namespace

Control::Control() {
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  post();
}

void Control::close() {
  MPI_Cancel(&receive_);
  MPI_Wait(&receive_, MPI_STATUS_IGNORE);
}

void Control::post() {
  check(MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, control_tag, comm_, &receive_), "MPI_Irecv");
}

void Control::send(int to, ControlMessage message) {
  message.from = rank_;
  Outgoing& out = outgoing_.emplace_back();
  out.message = message;
  check(MPI_Isend(&out.message, sizeof out.message, MPI_BYTE, to, control_tag, comm_, &out.request), "MPI_Isend");
}

void Control::send_all(const ControlMessage& message) {
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) send(peer, message);
}

std::optional<ControlMessage> Control::receive() {
  forget_sent();
  int complete = 0;
  check(MPI_Test(&receive_, &complete, MPI_STATUS_IGNORE), "MPI_Test");
  if (complete == 0) return std::nullopt;
  ControlMessage message = incoming_;
  message.text.back() = '\0';
  post();
  return message;
}

void Control::forget_sent() {
  for (auto out = outgoing_.begin(); out != outgoing_.end();) {
    int complete = 0;
    check(MPI_Test(&out->request, &complete, MPI_STATUS_IGNORE), "MPI_Test");
    out = complete != 0 ? outgoing_.erase(out) : std::next(out);
  }
}

void Control::flush(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    forget_sent();
    if (outgoing_.empty() || std::chrono::steady_clock::now() > deadline) return;
    std::this_thread::yield();
  }
}

}  // namespace baleen::mpi
