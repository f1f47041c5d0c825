#include "pipeline/links.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace baleen {

PipelineLinks::PipelineLinks(World& world, const std::vector<int>& stages, bool ring)
    : PipelineLinks([&](const std::vector<int>& ranks, const std::string& name) { return world.create_communicator(ranks, name); },
                    world.rank(), stages, ring) {}

PipelineLinks::PipelineLinks(const CreateCommunicator& create, int rank, const std::vector<int>& stages, bool ring) {
  BALEEN_CHECK(std::is_sorted(stages.begin(), stages.end()) && std::count(stages.begin(), stages.end(), rank) == 1, "rank", rank);
  create_direction(create, rank, stages, ring, "pp activations", activations_out_, activations_in_);
  create_direction(create, rank, stages, ring, "pp gradients", gradients_in_, gradients_out_);
}

PipelineLinks::~PipelineLinks() {
  for (auto& communicator : made_) communicator.reset();
}

// The groups of one call must not share a rank: first the pairs that begin with an even stage, then those with an odd one, then the pair
// that closes the ring.
void PipelineLinks::create_direction(const CreateCommunicator& create, int rank, const std::vector<int>& stages, bool ring,
                                     const std::string& name, End& to_next, End& to_previous) {
  const int count = static_cast<int>(stages.size());
  const int mine = static_cast<int>(std::find(stages.begin(), stages.end(), rank) - stages.begin());
  const auto take_part = [&](int first) {  // in the pair of stage `first` and the one after it
    const int second = (first + 1) % count;
    std::vector<int> pair;
    if (mine == first || mine == second)
      pair = {stages[static_cast<std::size_t>(std::min(first, second))], stages[static_cast<std::size_t>(std::max(first, second))]};
    auto communicator = create(pair, name);
    if (mine == first) to_next.communicator = communicator.get();
    if (mine == second) to_previous.communicator = communicator.get();
    made_.push_back(std::move(communicator));
  };
  for (int parity = 0; parity < std::min(2, count - 1); ++parity) {
    // This rank's pair in this round: it begins here or one stage before; outside the pipeline there is none.
    const int first = mine % 2 == parity ? mine : mine - 1;
    if (first >= 0 && first < count - 1)
      take_part(first);
    else
      create({}, name);
  }
  if (!ring || count == 1) return;
  if (mine == 0 || mine == count - 1)
    take_part(count - 1);
  else
    create({}, name);
}

Event PipelineLinks::send(End& end, const Tensor& tensor, Event after) {
  BALEEN_CHECK(end.communicator != nullptr, "no stage on that side");
  return end.communicator->send(tensor.data(), static_cast<std::size_t>(tensor.elements()), tensor.dtype(), end.peer(), std::move(after));
}

Event PipelineLinks::recv(End& end, const Tensor& tensor, Event after) {
  BALEEN_CHECK(end.communicator != nullptr, "no stage on that side");
  return end.communicator->recv(tensor.data(), static_cast<std::size_t>(tensor.elements()), tensor.dtype(), end.peer(), std::move(after));
}

void PipelineLinks::abort(const std::string& reason) {
  for (const End* end : {&activations_out_, &activations_in_, &gradients_out_, &gradients_in_})
    if (end->communicator) end->communicator->abort(reason);
}

std::uint64_t PipelineLinks::bytes_sent() const {
  std::uint64_t bytes = 0;
  for (const End* end : {&activations_out_, &gradients_out_})
    if (end->communicator) bytes += end->communicator->bytes_sent();
  return bytes;
}

std::uint64_t PipelineLinks::busy_nanoseconds() const {
  std::uint64_t time = 0;
  for (const End* end : {&activations_out_, &activations_in_, &gradients_out_, &gradients_in_})
    if (end->communicator) time += end->communicator->busy_nanoseconds();
  return time;
}

}  // namespace baleen
