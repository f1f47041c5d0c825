#include "optim/offloaded_states.h"

#include <algorithm>

namespace baleen {

OffloadedStates::OffloadedStates(Device& device, const UnitStorage& units, std::size_t piece_elements)
    : units_(units), in_(device.create_stream()), out_(device.create_stream()), back_(slots) {
  for (int unit = 0; unit < units.units(); ++unit) {
    const SliceRange all = units.updated(unit);
    for (std::size_t begin = all.begin; begin < all.end; begin += piece_elements) {
      const SliceRange range{begin, std::min(all.end, begin + piece_elements)};
      pieces_.push_back(in_host_memory(unit, range));
      slot_elements_ = std::max(slot_elements_, range.size());
    }
  }
  const std::size_t used = std::min(slots, pieces_.size()), tensors = units.has_separate_master() ? 3 : 2;
  staging_ = device.allocate("optimizer staging", used * tensors * slot_elements_ * dtype_bytes(units.options().state));
}

StatesPiece OffloadedStates::in_host_memory(int unit, SliceRange range) const {
  const auto of = [&](const Tensor& flat) {
    return flat.rows(static_cast<std::int64_t>(range.begin - units_.updated(unit).begin), static_cast<std::int64_t>(range.size()));
  };
  return {unit, range, of(units_.master(unit)), of(units_.exp_avg(unit)), of(units_.exp_avg_sq(unit))};
}

void OffloadedStates::copy(const StatesPiece& to, const StatesPiece& from, Stream& stream) const {
  if (units_.has_separate_master()) stream.copy(to.master.data(), from.master.data(), from.master.bytes());
  stream.copy(to.exp_avg.data(), from.exp_avg.data(), from.exp_avg.bytes());
  stream.copy(to.exp_avg_sq.data(), from.exp_avg_sq.data(), from.exp_avg_sq.bytes());
}

void OffloadedStates::for_each(Stream& compute, const std::function<void(const StatesPiece&)>& update) {
  const DType dtype = units_.options().state;
  const std::size_t tensor_bytes = slot_elements_ * dtype_bytes(dtype);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::size_t slot = i % slots;
    std::byte* place = staging_.as<std::byte>() + slot * (units_.has_separate_master() ? 3 : 2) * tensor_bytes;
    const auto staged = [&] {
      const Tensor tensor(place, dtype, {static_cast<std::int64_t>(pieces_[i].range.size())});
      place += tensor_bytes;
      return tensor;
    };
    StatesPiece here = pieces_[i];
    if (units_.has_separate_master()) here.master = staged();  // else it is the weights, which are on the device
    here.exp_avg = staged();
    here.exp_avg_sq = staged();
    in_->wait(back_[slot]);
    copy(here, pieces_[i], *in_);
    compute.wait(in_->record());
    update(here);
    out_->wait(compute.record());
    copy(pieces_[i], here, *out_);
    back_[slot] = out_->record();
  }
  compute.wait(out_->record());
}

}  // namespace baleen
