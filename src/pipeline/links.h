// The communicators between the ranks of one pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace baleen {

// Every pair of neighbours has one communicator for activations and one for gradients. Each is a queue that its two members fill in the
// order of the table, one only with sends and the other only with receives: nothing waits behind a message of the other direction or of
// another pair, so that the order of sends and receives cannot cross.
class PipelineLinks {
 public:
  using CreateCommunicator = std::function<std::unique_ptr<Communicator>(const std::vector<int>& ranks, const std::string& name)>;

  // `stages`: the world ranks of this rank's pipeline, ascending, stage by stage. `ring`: also between the last and the first, for virtual
  // stages. Collective over the world: every rank calls it at the same point, with a pipeline of the same length, none of which share
  // ranks.
  PipelineLinks(World& world, const std::vector<int>& stages, bool ring);
  // The same where communicators come from `create` (World::create_communicator, possibly wrapped) for world rank `rank`.
  PipelineLinks(const CreateCommunicator& create, int rank, const std::vector<int>& stages, bool ring);
  // The end of a communicator may wait for its other member's. All ranks end theirs in the order in which they made them.
  ~PipelineLinks();
  PipelineLinks(const PipelineLinks&) = delete;
  PipelineLinks& operator=(const PipelineLinks&) = delete;

  // Activations go to the next stage, gradients to the one before.
  Event send_activation(const Tensor& tensor, Event after) { return send(activations_out_, tensor, std::move(after)); }
  Event recv_activation(const Tensor& tensor, Event after) { return recv(activations_in_, tensor, std::move(after)); }
  Event send_gradient(const Tensor& tensor, Event after) { return send(gradients_out_, tensor, std::move(after)); }
  Event recv_gradient(const Tensor& tensor, Event after) { return recv(gradients_in_, tensor, std::move(after)); }

  // Makes every pending and future message of this rank fail, on its neighbours too.
  void abort(const std::string& reason);

  // By this rank, since construction; and the time its communicators spent in operations.
  std::uint64_t bytes_sent() const;
  std::uint64_t busy_nanoseconds() const;

 private:
  struct End {
    Communicator* communicator = nullptr;
    int peer() const { return 1 - communicator->rank(); }
  };
  // The communicators of one direction: from this rank's stage to the one after, and from the one before to it.
  void create_direction(const CreateCommunicator& create, int rank, const std::vector<int>& stages, bool ring, const std::string& name,
                        End& to_next, End& to_previous);
  static Event send(End& end, const Tensor& tensor, Event after);
  static Event recv(End& end, const Tensor& tensor, Event after);

  std::vector<std::unique_ptr<Communicator>> made_;  // in the order of their making
  End activations_out_, activations_in_, gradients_out_, gradients_in_;
};

}  // namespace baleen
