#include "pipeline/executor.h"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/machine.h"
#include "pipeline/validate.h"

namespace baleen {

double PipelineTimes::bubble_fraction() const {
  const auto span = std::chrono::duration<double>(end - begin).count();
  return span > 0 ? 1 - std::chrono::duration<double>(busy).count() / span : 0.0;
}

bool one_clock(Communicator& stages) {
  const std::uint64_t machine = machine_identity();
  std::array<std::uint64_t, 2> bounds{machine, ~machine};
  stages.all_reduce(bounds.data(), bounds.data(), bounds.size(), DType::u64, ReduceOp::max).wait();
  return bounds[0] == ~bounds[1];
}

PipelineClock::time_point common_moment(Communicator& stages) {
  stages.barrier().wait();
  return PipelineClock::now() - std::chrono::hours(1);
}

double bubble_fraction(Communicator& stages, const PipelineTimes& times, PipelineClock::time_point origin) {
  const auto nanoseconds = [](PipelineClock::duration duration) {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
  };
  std::array<std::uint64_t, 2> ends{~nanoseconds(times.begin - origin), nanoseconds(times.end - origin)};
  std::uint64_t busy = nanoseconds(times.busy);
  stages.all_reduce(ends.data(), ends.data(), ends.size(), DType::u64, ReduceOp::max);
  stages.all_reduce(&busy, &busy, 1, DType::u64, ReduceOp::sum).wait();
  const double span = static_cast<double>(ends[1] - ~ends[0]);
  return span > 0 ? 1 - static_cast<double>(busy) / (span * stages.size()) : 0.0;
}

PipelineTimes PipelineExecutor::times(int runs_ago) {
  PipelineTimes times;
  bool begun = false;
  for (const Span& span : spans_.at(static_cast<std::size_t>(runs_ago))) {
    if (!span.action.compute()) continue;
    if (!std::exchange(begun, true)) times.begin = clock_.time_of(span.begin);
    times.end = clock_.time_of(span.end);
    times.busy +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds_between(span.begin, span.end)));
  }
  return times;
}

std::vector<TimedAction> PipelineExecutor::timed_actions(int runs_ago) const {
  std::vector<TimedAction> actions;
  for (const Span& span : spans_.at(static_cast<std::size_t>(runs_ago)))
    actions.push_back({span.action, seconds_between(span.begin, span.end)});
  return actions;
}

std::size_t BoundaryShape::slot_bytes() const {
  const std::size_t bytes = Tensor(nullptr, dtype, {rows, columns}).bytes();
  return (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
}

PipelineExecutor::PipelineExecutor(Schedule schedule, int rank, const BoundaryShape& shape, Device& device, Stream& compute,
                                   PipelineLinks* links)
    : PipelineExecutor(std::move(schedule), rank, shape, device, compute, links, Options{}) {}

PipelineExecutor::PipelineExecutor(Schedule schedule, int rank, const BoundaryShape& shape, Device& device, Stream& compute,
                                   PipelineLinks* links, Options options)
    : schedule_(std::move(schedule)),
      rank_(rank),
      shape_(shape),
      device_(device),
      compute_(compute),
      links_(links),
      options_(options),
      clock_(device) {
  const auto fault = find_fault(schedule_);
  BALEEN_CHECK(!fault, fault.value_or(""));
  BALEEN_CHECK(rank >= 0 && rank < schedule_.stages && (links != nullptr || schedule_.stages == 1), rank, schedule_.stages);
  plan_ = plan_boundary(schedule_, rank);
  for (const Action& action : schedule_.ranks[static_cast<std::size_t>(rank)]) {
    if (action.kind == ActionKind::recv_activation) activations_.receives.push_back(action);
    if (action.kind == ActionKind::recv_gradient) gradients_.receives.push_back(action);
  }
  const auto incoming = [&](Incoming& in, const char* name, int slots) {
    in.slots = allocate_slots(name, slots);
    in.arrived.resize(in.slots.size());
    in.freed.resize(in.slots.size());
  };
  incoming(activations_, "pipeline inputs", plan_.activation_slots);
  incoming(gradients_, "pipeline output gradients", plan_.gradient_slots);
  const auto outgoing = [&](Outgoing& out, const char* name, int slots) {
    out.slots = allocate_slots(name, slots);
    out.sent.resize(out.slots.size());
  };
  outgoing(out_activations_, "pipeline outputs", plan_.outgoing_activation_slots);
  outgoing(out_gradients_, "pipeline input gradients", plan_.outgoing_gradient_slots);
}

std::vector<Tensor> PipelineExecutor::allocate_slots(const char* name, int slots) {
  std::vector<Tensor> tensors;
  if (slots == 0) return tensors;
  buffers_.push_back(device_.allocate(name, static_cast<std::size_t>(slots) * shape_.slot_bytes()));
  for (int slot = 0; slot < slots; ++slot)
    tensors.emplace_back(buffers_.back().as<std::byte>() + static_cast<std::size_t>(slot) * shape_.slot_bytes(), shape_.dtype,
                         std::initializer_list<std::int64_t>{shape_.rows, shape_.columns});
  return tensors;
}

PipelineExecutor::~PipelineExecutor() {
  for (const std::vector<Event>* events : {&activations_.arrived, &gradients_.arrived, &out_activations_.sent, &out_gradients_.sent})
    for (const Event& event : *events) {
      try {
        event.wait();
      } catch (const std::exception&) {  // it is over, whatever became of it; who waited for it in run() has heard
      }
    }
}

void PipelineExecutor::run(StageWork& work, PipelineObserver* observer) {
  try {
    run_table(work, observer);
  } catch (const std::exception& error) {
    if (links_ != nullptr) links_->abort(fmt::format("stage {} of the pipeline failed: {}", rank_, error.what()));
    throw;
  }
}

void PipelineExecutor::run_table(StageWork& work, PipelineObserver* observer) {
  for (Incoming* incoming : {&activations_, &gradients_}) {
    incoming->posted = incoming->taken = 0;
    incoming->occupied.assign(incoming->slots.size(), false);
  }
  for (Outgoing* outgoing : {&out_activations_, &out_gradients_}) outgoing->written = outgoing->enqueued = 0;
  std::swap(spans_[0], spans_[1]);
  spans_[0].clear();
  for (const Action& action : schedule_.ranks[static_cast<std::size_t>(rank_)]) {
    if (options_.prefetch) {
      post_free(activations_);
      post_free(gradients_);
    }
    auto begin = PipelineClock::now();
    if (action.compute())
      begin = compute(work, action);
    else
      perform(work, action);
    const auto end = PipelineClock::now();
    if (action.compute()) spans_[0].back().end = record_time(compute_);
    if (observer != nullptr) observer->on_action(action, begin, end);
  }
}

void PipelineExecutor::perform(StageWork& work, const Action& action) {
  switch (action.kind) {
    case ActionKind::recv_activation: return receive(activations_, action);
    case ActionKind::recv_gradient: return receive(gradients_, action);
    case ActionKind::send_activation: return send(out_activations_, true);
    case ActionKind::send_gradient: return send(out_gradients_, false);
    case ActionKind::gather: return work.gather(action.chunk);
    case ActionKind::release: return work.release(action.chunk);
    case ActionKind::reduce: return work.reduce(action.chunk);
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::backward_input:
    case ActionKind::backward_weight: break;
  }
  BALEEN_CHECK(false, describe(action));
}

PipelineClock::time_point PipelineExecutor::begin_computation(const Action& action) {
  spans_[0].push_back({action, record_time(compute_), {}});
  return PipelineClock::now();
}

// Returns when the computation began.
PipelineClock::time_point PipelineExecutor::compute(StageWork& work, const Action& action) {
  const int chunk = action.chunk, i = action.micro_batch;
  const bool alone = schedule_.stages == 1;
  PipelineClock::time_point begin;
  if (action.kind == ActionKind::forward) {
    const Tensor in = schedule_.first(chunk) ? Tensor() : incoming_tensor(activations_, chunk, i);
    Tensor out;
    if (!schedule_.last(chunk)) out = alone ? incoming_tensor(activations_, chunk + 1, i) : next_outgoing(out_activations_);
    begin = begin_computation(action);
    work.forward(chunk, i, in, out);
  } else if (action.first_backward()) {
    const Tensor d_out = schedule_.last(chunk) ? Tensor() : incoming_tensor(gradients_, chunk, i);
    Tensor d_in;
    if (!schedule_.first(chunk)) d_in = alone ? incoming_tensor(gradients_, chunk - 1, i) : next_outgoing(out_gradients_);
    begin = begin_computation(action);
    if (action.kind == ActionKind::backward)
      work.backward(chunk, i, d_out, d_in);
    else
      work.backward_input(chunk, i, d_out, d_in);
  } else {
    begin = begin_computation(action);
    work.backward_weight(chunk, i);
  }
  if (schedule_.ends(action)) {
    if (!schedule_.first(chunk)) free_slot(activations_, chunk, i);
    if (action.last_backward() && !schedule_.last(chunk)) free_slot(gradients_, chunk, i);
  }
  return begin;
}

int PipelineExecutor::slot_of(const Incoming& incoming, int chunk, int micro_batch) const {
  const std::vector<int>& slots = &incoming == &activations_ ? plan_.activation : plan_.gradient;
  return slots[plan_.entry(chunk, micro_batch)];
}

Tensor PipelineExecutor::incoming_tensor(const Incoming& incoming, int chunk, int micro_batch) const {
  return incoming.slots[static_cast<std::size_t>(slot_of(incoming, chunk, micro_batch))];
}

void PipelineExecutor::free_slot(Incoming& incoming, int chunk, int micro_batch) {
  const auto slot = static_cast<std::size_t>(slot_of(incoming, chunk, micro_batch));
  incoming.freed[slot] = compute_.record();
  incoming.occupied[slot] = false;
}

void PipelineExecutor::post_free(Incoming& incoming) {
  while (incoming.posted < incoming.receives.size()) {
    const Action& next = incoming.receives[incoming.posted];
    if (incoming.occupied[static_cast<std::size_t>(slot_of(incoming, next.chunk, next.micro_batch))]) return;
    post_next(incoming);
  }
}

void PipelineExecutor::post_next(Incoming& incoming, const Event& after) {
  const Action& next = incoming.receives[incoming.posted++];
  const auto slot = static_cast<std::size_t>(slot_of(incoming, next.chunk, next.micro_batch));
  BALEEN_CHECK(!incoming.occupied[slot], describe(next));
  incoming.occupied[slot] = true;
  const Event& begin = after.state() != nullptr ? after : incoming.freed[slot];  // `after` is later
  incoming.arrived[slot] = next.kind == ActionKind::recv_activation ? links_->recv_activation(incoming.slots[slot], begin)
                                                                    : links_->recv_gradient(incoming.slots[slot], begin);
}

void PipelineExecutor::receive(Incoming& incoming, const Action& action) {
  if (incoming.posted == incoming.taken) post_next(incoming, compute_.record());
  BALEEN_CHECK(incoming.receives[incoming.taken] == action, describe(action));
  ++incoming.taken;
  spans_[0].push_back({action, record_time(compute_), {}});
  compute_.wait(incoming.arrived[static_cast<std::size_t>(slot_of(incoming, action.chunk, action.micro_batch))]);
  spans_[0].back().end = record_time(compute_);
}

// The tensor of the next message, once the message that it held before has left.
Tensor PipelineExecutor::next_outgoing(Outgoing& outgoing) {
  const std::size_t slot = outgoing.written++ % outgoing.slots.size();
  compute_.wait(outgoing.sent[slot]);
  return outgoing.slots[slot];
}

void PipelineExecutor::send(Outgoing& outgoing, bool activation) {
  const std::size_t slot = outgoing.enqueued++ % outgoing.slots.size();
  const Tensor& tensor = outgoing.slots[slot];
  outgoing.sent[slot] = activation ? links_->send_activation(tensor, compute_.record()) : links_->send_gradient(tensor, compute_.record());
}

}  // namespace baleen
