#include "sharding/parameter.h"

#include <algorithm>

#include "base/error.h"

namespace baleen {
namespace {

std::int64_t product(const std::vector<std::int64_t>& extents) {
  std::int64_t result = 1;
  for (const std::int64_t extent : extents) result *= extent;
  return result;
}

std::vector<std::int64_t> extents_of(const HeldBox& box) {
  std::vector<std::int64_t> extents;
  for (std::size_t dim = 0; dim < box.begin.size(); ++dim) extents.push_back(box.end[dim] - box.begin[dim]);
  return extents;
}

}  // namespace

std::int64_t ParameterDescription::global_elements() const {
  return product(shape);
}

std::int64_t ParameterDescription::elements() const {
  return held.begin.empty() ? global_elements() : product(extents_of(held));
}

std::vector<std::int64_t> ParameterDescription::held_shape() const {
  if (held.begin.empty()) return shape;
  std::vector<std::int64_t> extents = extents_of(held);
  while (extents.size() > shape.size()) {  // a view's trailing dims are one
    const std::int64_t last = extents.back();
    extents.pop_back();
    extents.back() *= last;
  }
  return extents;
}

void ParameterDescription::for_each_run(SliceRange held_range,
                                        const std::function<void(std::size_t, std::size_t, std::size_t)>& visit) const {
  if (held_range.size() == 0) return;
  if (held_whole()) return visit(held_range.begin, held_range.begin, held_range.size());
  // One dim is sliced: before it come `rows`, each a run of `run` elements of the box and `pitch` of the whole.
  const auto& whole = sliced_shape();
  const auto dim = static_cast<std::size_t>(split.dim);
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < whole.size(); ++d) inner *= whole[d];
  const auto run = static_cast<std::size_t>((held.end[dim] - held.begin[dim]) * inner);
  const auto pitch = static_cast<std::size_t>(whole[dim] * inner), offset = static_cast<std::size_t>(held.begin[dim] * inner);
  for (std::size_t at = held_range.begin; at < held_range.end;) {
    const std::size_t row = at / run, column = at % run, count = std::min(run - column, held_range.end - at);
    visit(at, row * pitch + offset + column, count);
    at += count;
  }
}

}  // namespace baleen
