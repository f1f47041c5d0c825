#include "sharding/unit_layout.h"

namespace baleen {
namespace {

std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

UnitLayout::UnitLayout(const UnitDescription& unit, int shards) : shards_(shards), offsets_(unit.parameters.size()) {
  const std::size_t padding = slice_granularity * static_cast<std::size_t>(shards);
  const auto place = [&](bool trainable) {
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      if (unit.parameters[i].trainable != trainable) continue;
      offsets_[i] = elements_;
      elements_ = round_up(elements_ + static_cast<std::size_t>(unit.parameters[i].elements()), slice_granularity);
    }
    elements_ = round_up(elements_, padding);
  };
  place(true);
  trainable_elements_ = elements_;
  place(false);
}

}  // namespace baleen
