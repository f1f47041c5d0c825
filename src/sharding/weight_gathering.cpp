#include "sharding/weight_gathering.h"

#include <utility>

#include "base/error.h"

namespace baleen {

WeightGathering::WeightGathering(const DataGroup& group, UnitStorage& storage, CommWaits& waits)
    : group_(group),
      storage_(storage),
      waits_(waits),
      arrived_(static_cast<std::size_t>(storage.units())),
      waiting_(static_cast<std::size_t>(storage.units()), false),
      in_use_(static_cast<std::size_t>(storage.weight_pool().slots()), false) {
  if (storage.stage() > 0) announced_.add(group.gather, storage.weight_buffer(), MemoryUse::moved);
  announced_.add(group.gather, storage.weight_pool(), MemoryUse::moved);
}

WeightGathering::~WeightGathering() {
  bool aborted = false;
  for (std::size_t unit = 0; unit < arrived_.size(); ++unit) {
    try {
      if (!waiting_[unit] || arrived_[unit].ready()) continue;
      if (!std::exchange(aborted, true)) group_.gather.abort("a training step ended before its weights were gathered");
      arrived_[unit].wait();
    } catch (const Error&) {  // the abort's own answer, or a GPU's that has failed
    }
  }
}

void WeightGathering::gather_into_pool(int unit, Stream& compute) {
  UnitPool& pool = storage_.weight_pool();
  pool.set_owner(pool.slot(unit), unit);
  if (compute.measuring()) return;
  const UnitLayout& layout = storage_.layout(unit);
  const DType dtype = storage_.options().compute;
  auto* const whole = static_cast<std::byte*>(pool.memory(unit));
  const auto gather = [&](const Tensor& own, std::size_t begin) {
    arrived_[static_cast<std::size_t>(unit)] = group_.gather.all_gather(own.data(), whole + begin * dtype_bytes(dtype),
                                                                        static_cast<std::size_t>(own.elements()), dtype, compute.record());
  };
  gather(storage_.updated_weights(unit), 0);
  // The communicator's queue keeps the order: the second gather is complete after the first.
  if (layout.elements() > layout.trainable_elements()) gather(storage_.frozen_slice_weights(unit), layout.trainable_elements());
  waiting_[static_cast<std::size_t>(unit)] = true;
  waits_.started(compute, arrived_[static_cast<std::size_t>(unit)]);
}

void WeightGathering::needed(int unit, int next, ops::Context& compute) {
  if (storage_.stage() == 3) {
    UnitPool& pool = storage_.weight_pool();
    if (!pool.holds(unit)) gather_into_pool(unit, compute.stream);
    in_use_[static_cast<std::size_t>(pool.slot(unit))] = true;
    if (next >= 0 && !pool.holds(next) && !in_use_[static_cast<std::size_t>(pool.slot(next))]) gather_into_pool(next, compute.stream);
  }
  const auto index = static_cast<std::size_t>(unit);
  if (!waiting_[index]) return;
  waits_.wait(compute.stream, arrived_[index]);
  waiting_[index] = false;
}

void WeightGathering::done(int unit, ops::Context& compute) {
  if (storage_.stage() != 3) return;
  UnitPool& pool = storage_.weight_pool();
  in_use_[static_cast<std::size_t>(pool.slot(unit))] = false;
  if (compute.stream.measuring()) pool.set_owner(pool.slot(unit), -1);  // a dry run gathers nothing
}

void WeightGathering::publish(Stream& compute) {
  if (storage_.stage() == 3) {
    for (std::size_t unit = 0; unit < waiting_.size(); ++unit) BALEEN_CHECK(!waiting_[unit], "weights were gathered and not used", unit);
    storage_.weight_pool().clear();
  }
  if (storage_.stage() == 0 || storage_.stage() == 3 || group_.gather.alone()) return;
  settle(compute);
  for (int unit = 0; unit < storage_.units(); ++unit) {
    const Tensor own = storage_.updated_weights(unit), all = storage_.flat_weights(unit);
    if (own.elements() == 0) continue;
    const auto index = static_cast<std::size_t>(unit);
    arrived_[index] =
        group_.gather.all_gather(own.data(), all.data(), static_cast<std::size_t>(own.elements()), own.dtype(), compute.record());
    waiting_[index] = true;
    waits_.started(compute, arrived_[index]);
  }
}

void WeightGathering::settle(Stream& compute) {
  for (std::size_t unit = 0; unit < waiting_.size(); ++unit) {
    if (waiting_[unit]) waits_.wait(compute, arrived_[unit]);
    waiting_[unit] = false;
  }
}

}  // namespace baleen
