#include "pipeline/validate.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

#include "pipeline/simulate.h"

namespace baleen {
namespace {

using Fault = std::optional<std::string>;

constexpr std::size_t kinds_of_a_micro_batch = 8;  // ActionKind up to recv_gradient

std::size_t index_of(ActionKind kind) {
  return static_cast<std::size_t>(kind);
}

class Validator {
 public:
  explicit Validator(const Schedule& schedule) : schedule_(schedule) {}

  Fault find() {
    if (Fault fault = check_shape()) return fault;
    const auto entries = static_cast<std::size_t>(schedule_.chunks()) * static_cast<std::size_t>(schedule_.micro_batches);
    for (auto& places : place_) places.assign(entries, absent);
    for (int rank = 0; rank < schedule_.stages; ++rank)
      if (Fault fault = note_places(rank)) return fault;
    for (int chunk = 0; chunk < schedule_.chunks(); ++chunk)
      for (int i = 0; i < schedule_.micro_batches; ++i)
        if (Fault fault = check_complete(chunk, i)) return fault;
    for (int rank = 0; rank < schedule_.stages; ++rank) {
      if (Fault fault = check_messages(rank)) return fault;
      if (Fault fault = check_memory(rank)) return fault;
      if (Fault fault = check_sharding(rank)) return fault;
    }
    return check_progress();
  }

 private:
  static constexpr std::int32_t absent = -1;

  const std::vector<Action>& table(int rank) const { return schedule_.ranks[static_cast<std::size_t>(rank)]; }
  std::size_t entry(int chunk, int i) const {
    return static_cast<std::size_t>(chunk) * static_cast<std::size_t>(schedule_.micro_batches) + static_cast<std::size_t>(i);
  }
  std::int32_t place(ActionKind kind, int chunk, int i) const { return place_[index_of(kind)][entry(chunk, i)]; }
  bool present(ActionKind kind, int chunk, int i) const { return place(kind, chunk, i) != absent; }

  Fault check_shape() const {
    const auto stages = static_cast<std::size_t>(schedule_.stages);
    if (schedule_.stages < 1 || schedule_.virtual_stages < 1 || schedule_.micro_batches < 1)
      return "a pipeline without stages or micro-batches";
    if (schedule_.ranks.size() != stages || schedule_.activations_in_flight.size() != stages || schedule_.weights_gathered.size() != stages)
      return fmt::format("{} stages with tables for {} ranks", schedule_.stages, schedule_.ranks.size());
    return {};
  }

  // Where in its rank's table each action is.
  Fault note_places(int rank) {
    std::int32_t at = -1;
    for (const Action& action : table(rank)) {
      ++at;
      if (action.chunk < 0 || action.chunk >= schedule_.chunks() || schedule_.rank_of(action.chunk) != rank)
        return fmt::format("rank {} has no chunk for: {}", rank, describe(action));
      if (index_of(action.kind) >= kinds_of_a_micro_batch) continue;
      if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches)
        return fmt::format("rank {} has no micro-batch for: {}", rank, describe(action));
      std::int32_t& place = place_[index_of(action.kind)][entry(action.chunk, action.micro_batch)];
      if (place != absent) return fmt::format("rank {} has twice: {}", rank, describe(action));
      place = at;
    }
    return {};
  }

  // `first` and `second` are both there, in that order.
  Fault in_order(ActionKind first, ActionKind second, int chunk, int i) const {
    for (const ActionKind kind : {first, second})
      if (!present(kind, chunk, i)) return fmt::format("missing: {}", describe({kind, chunk, i}));
    if (place(first, chunk, i) < place(second, chunk, i)) return {};
    return fmt::format("{} comes before {}", describe({second, chunk, i}), action_name(first));
  }

  Fault check_complete(int chunk, int i) const {
    if (schedule_.forward_only) {
      for (const ActionKind kind : {ActionKind::backward, ActionKind::backward_input, ActionKind::backward_weight})
        if (present(kind, chunk, i)) return fmt::format("{} in a table without backward passes", describe({kind, chunk, i}));
      if (!present(ActionKind::forward, chunk, i)) return fmt::format("missing: {}", describe({ActionKind::forward, chunk, i}));
      return check_surroundings(chunk, i, ActionKind::backward);
    }
    const bool halves = present(ActionKind::backward_input, chunk, i) || present(ActionKind::backward_weight, chunk, i);
    if (halves && present(ActionKind::backward, chunk, i))
      return fmt::format("{} beside a half of it", describe({ActionKind::backward, chunk, i}));
    const ActionKind d_input = halves ? ActionKind::backward_input : ActionKind::backward;
    if (Fault fault = in_order(ActionKind::forward, d_input, chunk, i)) return fault;
    if (halves)
      if (Fault fault = in_order(d_input, ActionKind::backward_weight, chunk, i)) return fault;
    return check_surroundings(chunk, i, d_input);
  }

  // The messages around the forward pass and around the first backward, which is a `d_input`.
  Fault check_surroundings(int chunk, int i, ActionKind d_input) const {
    const bool backward = !schedule_.forward_only;
    struct Message {
      bool needed;
      ActionKind kind, compute;
      bool before;  // the message comes before the computation
    };
    const std::array messages{
        Message{schedule_.receives_input(chunk), ActionKind::recv_activation, ActionKind::forward, true},
        Message{schedule_.sends_output(chunk), ActionKind::send_activation, ActionKind::forward, false},
        Message{backward && schedule_.sends_output(chunk), ActionKind::recv_gradient, d_input, true},
        Message{backward && schedule_.receives_input(chunk), ActionKind::send_gradient, d_input, false},
    };
    for (const Message& message : messages) {
      if (!message.needed) {
        if (present(message.kind, chunk, i)) return fmt::format("nobody is there for: {}", describe({message.kind, chunk, i}));
      } else if (Fault fault = message.before ? in_order(message.kind, message.compute, chunk, i)
                                              : in_order(message.compute, message.kind, chunk, i)) {
        return fault;
      }
    }
    return {};
  }

  // The messages that `rank` receives are sent in the same order, and written in the order in which they are sent.
  Fault check_messages(int rank) const {
    for (const bool activations : {true, false}) {
      const ActionKind send = activations ? ActionKind::send_activation : ActionKind::send_gradient;
      const ActionKind receive = activations ? ActionKind::recv_activation : ActionKind::recv_gradient;
      const int step = activations ? -1 : 1;  // from a chunk to the one its message comes from
      std::int32_t sent = absent, written = absent;
      for (const Action& action : table(rank)) {
        if (action.kind != receive) continue;
        const int from = action.chunk + step, i = action.micro_batch;
        const ActionKind writer = activations                                    ? ActionKind::forward
                                  : present(ActionKind::backward_input, from, i) ? ActionKind::backward_input
                                                                                 : ActionKind::backward;
        if (place(send, from, i) < sent || place(writer, from, i) < written)
          return fmt::format("rank {} expects {} later than it is sent", rank, describe(action));
        sent = place(send, from, i);
        written = place(writer, from, i);
      }
    }
    return {};
  }

  Fault check_memory(int rank) const {
    int in_flight = 0;
    const int promised = schedule_.activations_in_flight[static_cast<std::size_t>(rank)];
    for (const Action& action : table(rank)) {
      if (action.kind == ActionKind::forward && ++in_flight > promised)
        return fmt::format("rank {} keeps {} activations where {} were promised, at {}", rank, in_flight, promised, describe(action));
      if (schedule_.ends(action)) --in_flight;
    }
    return {};
  }

  Fault check_sharding(int rank) const {
    const int promised = schedule_.weights_gathered[static_cast<std::size_t>(rank)];
    const auto locals = static_cast<std::size_t>(schedule_.virtual_stages);
    std::vector<bool> whole(locals);
    std::vector<int> reduced(locals), left(locals, schedule_.micro_batches);
    int now = 0, reductions = 0;
    const auto wrong = [&](const Action& action, const char* why) { return fmt::format("rank {}, {}: {}", rank, describe(action), why); };
    for (const Action& action : table(rank)) {
      const auto local = static_cast<std::size_t>(schedule_.local(action.chunk));
      if (action.kind == ActionKind::gather) {
        if (whole[local]) return wrong(action, "it is whole already");
        if (++now > promised) return wrong(action, "more chunks are whole than were promised");
        whole[local] = true;
      } else if (action.kind == ActionKind::release) {
        if (!whole[local]) return wrong(action, "it is not whole");
        --now;
        whole[local] = false;
      } else if (action.kind == ActionKind::reduce) {
        if (left[local] != 0 || reduced[local]++ != 0) return wrong(action, "not once after the last backward");
        ++reductions;
      } else if (action.compute()) {
        if (promised > 0 && !whole[local]) return wrong(action, "its weights are not whole");
        left[local] -= action.last_backward();
      }
    }
    if (now != 0) return fmt::format("rank {} does not release all it gathers", rank);
    if (reductions != 0 && reductions != schedule_.virtual_stages) return fmt::format("rank {} does not reduce all its chunks", rank);
    return {};
  }

  Fault check_progress() const {
    const Simulation played = simulate(schedule_, {{0, 0, 0}}, {0, /*prefetch=*/false});
    if (played.complete) return {};
    std::string out = "ranks wait for each other:";
    for (int rank = 0; rank < schedule_.stages; ++rank) {
      const std::size_t next = played.next[static_cast<std::size_t>(rank)];
      if (next < table(rank).size()) out += fmt::format(" rank {} at {};", rank, describe(table(rank)[next]));
    }
    out.pop_back();
    return out;
  }

  const Schedule& schedule_;
  std::array<std::vector<std::int32_t>, kinds_of_a_micro_batch> place_;
};

}  // namespace

std::optional<std::string> find_fault(const Schedule& schedule) {
  return Validator(schedule).find();
}

}  // namespace baleen
