#include "sharding/gradient_reduction.h"

#include "base/error.h"
#include "ops/elementwise.h"

namespace baleen {

GradientReduction::GradientReduction(const DataGroup& group, UnitStorage& storage, ReduceOp op, CommWaits& waits)
    : group_(group),
      storage_(storage),
      op_(op),
      waits_(waits),
      in_flight_(static_cast<std::size_t>(storage.gradient_pool().slots())),
      slice_has_value_(static_cast<std::size_t>(storage.units()), false) {
  pending_.reserve(static_cast<std::size_t>(storage.units()));
  const bool scatters = storage.stage() == 1 || (storage.stage() == 0 && group.replicas != nullptr);  // later stages do from the pool
  announced_.add(group.reduce, storage.gradient_buffer(), scatters ? MemoryUse::reduced : MemoryUse::moved);
  announced_.add(group.reduce, storage.gradient_pool(), MemoryUse::reduced);
  if (group.replicas == nullptr) return;
  announced_.add(*group.replicas, storage.gradient_buffer(), MemoryUse::moved);
  if (storage.stage() == 0) announced_.add(group.gather, storage.gradient_buffer(), MemoryUse::moved);
}

GradientReduction::~GradientReduction() {
  std::vector<Event> events = pending_;
  for (const InFlight& in_flight : in_flight_)
    if (in_flight.unit >= 0) events.push_back(in_flight.reduced);
  if (events.empty()) return;
  const char* const reason = "a training step ended before its gradients were reduced";
  group_.reduce.abort(reason);
  group_.gather.abort(reason);
  for (Communicator* const other : {group_.replicas, group_.tensor, group_.kv_heads})
    if (other != nullptr) other->abort(reason);
  for (const Event& event : events) {
    try {
      event.wait();
    } catch (const Error&) {  // the abort's own answer
    }
  }
}

void GradientReduction::begin_step(Stream& compute) {
  for (int unit = 0; storage_.stage() < 2 && unit < storage_.units(); ++unit) storage_.begin_gradients(unit, compute);
  slice_has_value_.assign(slice_has_value_.size(), false);
}

void GradientReduction::needed(int unit, ops::Context& compute) {
  if (storage_.stage() < 2) return;
  UnitPool& pool = storage_.gradient_pool();
  const int slot = pool.slot(unit);
  if (!compute.stream.measuring()) {
    finish(in_flight_[static_cast<std::size_t>(slot)], compute);
    storage_.begin_gradients(unit, compute.stream);
  }
  pool.set_owner(slot, unit);
}

void GradientReduction::done(int unit, ops::Context& compute) {
  if (!compute.stream.measuring() && (last_ || storage_.stage() >= 2)) storage_.complete_gradients(unit, compute.stream);
  if (storage_.stage() >= 2) storage_.gradient_pool().set_owner(storage_.gradient_pool().slot(unit), -1);
  if (compute.stream.measuring()) return;
  if (storage_.stage() < 2) {
    if (!last_) return;
    const Event filled = sum_copies(unit, storage_.flat_gradients(unit), compute.stream.record());
    if (alone())
      pending_.push_back(filled);
    else
      pending_.push_back(storage_.stage() == 0 ? reduce_whole(unit, filled) : reduce_to_slice(unit, filled));
    waits_.started(compute.stream, pending_.back());
    return;
  }
  const Event filled = sum_copies(unit, storage_.pool_gradients(unit), compute.stream.record());
  // The first micro-step writes the slice. Others add to it, or leave their sum in the pool until it is added.
  const auto index = static_cast<std::size_t>(unit);
  InFlight& in_flight = in_flight_[static_cast<std::size_t>(storage_.gradient_pool().slot(unit))];
  const Tensor slice = storage_.slice_gradients(unit);
  const void* const all = storage_.gradient_pool().memory(unit);
  const auto count = static_cast<std::size_t>(slice.elements());
  if (slice_has_value_[index] && group_.reduce.adds_to_held(all, count, slice.dtype(), op_)) {
    in_flight = {unit, group_.reduce.reduce_scatter_add(all, slice.data(), count, slice.dtype(), op_, filled), false, last_};
  } else {
    in_flight = {unit, {}, slice_has_value_[index], last_};
    const Tensor own = in_flight.add ? pool_slice(unit) : slice;
    in_flight.reduced = group_.reduce.reduce_scatter(all, own.data(), count, own.dtype(), op_, filled);
  }
  waits_.started(compute.stream, in_flight.reduced);
  slice_has_value_[index] = true;
}

Event GradientReduction::sum_copies(int unit, const Tensor& gradients, Event filled) {
  const UnitLayout& layout = storage_.layout(unit);
  const auto sum = [&](Communicator* axis, SliceRange range) {
    if (axis == nullptr || range.size() == 0) return;
    void* const copies = gradients.rows(static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.size())).data();
    filled = axis->all_reduce(copies, copies, range.size(), gradients.dtype(), ReduceOp::sum, filled);
  };
  sum(group_.kv_heads, layout.summed_over_some());
  sum(group_.tensor, layout.summed_over_all());
  return filled;
}

void GradientReduction::sum_tied(ops::Context& compute) {
  if (group_.tied == nullptr) return;
  for (int unit = 0; unit < storage_.units(); ++unit) {
    if (storage_.unit(unit).kind != UnitKind::embedding) continue;
    const Tensor own = storage_.updated_gradients(unit);
    waits_.wait(compute.stream, group_.tied->all_reduce(own.data(), own.data(), static_cast<std::size_t>(own.elements()), own.dtype(),
                                                        ReduceOp::sum, compute.stream.record()));
  }
}

Event GradientReduction::reduce_whole(int unit, Event filled) {
  const Tensor all = storage_.flat_gradients(unit);
  if (group_.replicas == nullptr)
    return group_.reduce.all_reduce(all.data(), all.data(), static_cast<std::size_t>(all.elements()), all.dtype(), op_, filled);
  const Tensor own = storage_.slice_gradients(unit);
  return group_.gather.all_gather(own.data(), all.data(), static_cast<std::size_t>(own.elements()), own.dtype(),
                                  reduce_to_slice(unit, filled));
}

Event GradientReduction::reduce_to_slice(int unit, Event filled) {
  const Tensor all = storage_.flat_gradients(unit), own = storage_.slice_gradients(unit);
  const auto count = static_cast<std::size_t>(own.elements());
  Event scattered = group_.reduce.reduce_scatter(all.data(), own.data(), count, own.dtype(), op_, filled);
  if (group_.replicas == nullptr) return scattered;
  return group_.replicas->all_reduce(own.data(), own.data(), count, own.dtype(), op_, scattered);
}

Tensor GradientReduction::pool_slice(int unit) const {
  const SliceRange range = storage_.slice(unit);
  return storage_.pool_gradients(unit).rows(static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.size()));
}

void GradientReduction::finish(InFlight& in_flight, ops::Context& compute) {
  if (in_flight.unit < 0) return;
  waits_.wait(compute.stream, in_flight.reduced);
  const Tensor own = storage_.slice_gradients(in_flight.unit);
  if (in_flight.add) ops::add(compute, own, own, pool_slice(in_flight.unit));
  if (in_flight.last && group_.replicas != nullptr)
    pending_.push_back(group_.replicas->all_reduce(own.data(), own.data(), static_cast<std::size_t>(own.elements()), own.dtype(), op_,
                                                   compute.stream.record()));
  in_flight.unit = -1;
}

void GradientReduction::wait(ops::Context& compute) {
  for (InFlight& in_flight : in_flight_) finish(in_flight, compute);
  for (const Event& event : pending_) waits_.wait(compute.stream, event);
  pending_.clear();
  sum_tied(compute);
}

}  // namespace baleen
