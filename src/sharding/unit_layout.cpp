#include "sharding/unit_layout.h"

namespace baleen {
namespace {

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::size_t region_of(const HeldBox& held) {
  switch (held.copies) {
    case HeldBox::Copies::none: return 0;
    case HeldBox::Copies::some: return 1;
    case HeldBox::Copies::all: return held.summed ? 2 : 3;
  }
  return 0;
}

}  // namespace

UnitLayout::UnitLayout(const UnitDescription& unit, int shards) : shards_(shards), offsets_(unit.parameters.size()) {
  const std::size_t padding = slice_granularity * static_cast<std::size_t>(shards);
  const auto place = [&](std::size_t index) {
    offsets_[index] = elements_;
    elements_ = round_up(elements_ + static_cast<std::size_t>(unit.parameters[index].elements()), slice_granularity);
  };
  for (std::size_t region = 0; region < regions_.size(); ++region) {
    regions_[region].begin = elements_;
    bool counts = !unit.copy;
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const ParameterDescription& parameter = unit.parameters[i];
      if (!parameter.trainable || region_of(parameter.held) != region) continue;
      place(i);
      const std::size_t end = offsets_[i] + static_cast<std::size_t>(parameter.elements());
      if (end != elements_) gaps_.push_back({end, elements_});
      counts = counts && parameter.held.counts;  // the same for all of a region
    }
    regions_[region].end = elements_;
    if (counts && regions_[region].size() > 0) counted_.push_back(regions_[region]);
  }
  const std::size_t unpadded = elements_;
  elements_ = round_up(elements_, padding);
  trainable_elements_ = elements_;
  if (elements_ != unpadded) gaps_.push_back({unpadded, elements_});
  for (std::size_t i = 0; i < unit.parameters.size(); ++i)
    if (!unit.parameters[i].trainable) place(i);
  elements_ = round_up(elements_, padding);
}

}  // namespace baleen
