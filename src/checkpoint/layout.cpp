#include "checkpoint/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace baleen::checkpoint {
namespace {

constexpr std::array<std::string_view, 3> kind_names{"weight", "exp_avg", "exp_avg_sq"};

std::string format_box(const Box& box) {
  std::string text = "[";
  for (std::size_t dim = 0; dim < box.begin.size(); ++dim)
    text += fmt::format("{}{}:{}", dim == 0 ? "" : ", ", box.begin[dim], box.end[dim]);
  return text + "]";
}

// Elements between neighbours along each dim, row-major inside the box.
Shape strides_of(const Box& box) {
  Shape strides(box.begin.size(), 1);
  for (std::size_t dim = strides.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * (box.end[dim] - box.begin[dim]);
  return strides;
}

// The part of the run that starts at flat `source` in one box and flat `target` in the other that both ranges hold.
void visit_clipped(const Placement& a, const Placement& b, std::int64_t source, std::int64_t target, std::int64_t count,
                   const std::function<void(const Run&)>& visit) {
  const std::int64_t skip = std::max<std::int64_t>({0, a.begin - source, b.begin - target});
  const std::int64_t stop = std::min({count, a.end - source, b.end - target});
  if (skip < stop) visit({source + skip - a.begin, target + skip - b.begin, stop - skip});
}

// Two boxes of one tensor, intersected.
class BoxIntersection {
 public:
  BoxIntersection(const Placement& source, const Placement& target)
      : source_(source), target_(target), low_(source.box.begin), high_(source.box.end) {
    for (std::size_t dim = 0; dim < low_.size(); ++dim) {
      low_[dim] = std::max(low_[dim], target.box.begin[dim]);
      high_[dim] = std::min(high_[dim], target.box.end[dim]);
      empty_ = empty_ || low_[dim] >= high_[dim];
    }
    source_strides_ = strides_of(source.box);
    target_strides_ = strides_of(target.box);
    // Dims after run_dim_ are whole in both boxes, so that [low, high) of run_dim_ is contiguous in both.
    run_dim_ = low_.size() - 1;
    while (run_dim_ > 0 && whole(run_dim_, source.box) && whole(run_dim_, target.box)) --run_dim_;
    // Rows of dim 0 that neither range reaches need no look.
    if (run_dim_ > 0) {
      narrow(source, source_strides_[0]);
      narrow(target, target_strides_[0]);
    }
  }

  void for_each_run(const std::function<void(const Run&)>& visit) const {
    if (empty_) return;
    const std::int64_t count = (high_[run_dim_] - low_[run_dim_]) * source_strides_[run_dim_];
    Shape index = low_;  // dims before run_dim_ count like an odometer
    while (true) {
      visit_clipped(source_, target_, flat(index, source_.box, source_strides_), flat(index, target_.box, target_strides_), count, visit);
      std::size_t dim = run_dim_;
      while (dim > 0 && ++index[dim - 1] == high_[dim - 1]) {
        index[dim - 1] = low_[dim - 1];
        --dim;
      }
      if (dim == 0) return;
    }
  }

 private:
  bool whole(std::size_t dim, const Box& box) const { return low_[dim] == box.begin[dim] && high_[dim] == box.end[dim]; }

  void narrow(const Placement& placement, std::int64_t stride) {
    if (empty_ || stride == 0) return;
    low_[0] = std::max(low_[0], placement.box.begin[0] + placement.begin / stride);
    high_[0] = std::min(high_[0], placement.box.begin[0] + (placement.end + stride - 1) / stride);
    empty_ = low_[0] >= high_[0];
  }

  static std::int64_t flat(const Shape& index, const Box& box, const Shape& strides) {
    std::int64_t offset = 0;
    for (std::size_t dim = 0; dim < index.size(); ++dim) offset += (index[dim] - box.begin[dim]) * strides[dim];
    return offset;
  }

  const Placement& source_;
  const Placement& target_;
  Shape low_, high_, source_strides_, target_strides_;
  std::size_t run_dim_ = 0;
  bool empty_ = false;
};

bool boxes_overlap(const Box& a, const Box& b) {
  for (std::size_t dim = 0; dim < a.begin.size(); ++dim)
    if (std::max(a.begin[dim], b.begin[dim]) >= std::min(a.end[dim], b.end[dim])) return false;
  return true;
}

// The first gap in [0, size) left by ranges sorted by begin, or nothing.
std::optional<std::pair<std::int64_t, std::int64_t>> first_gap(const std::vector<std::pair<std::int64_t, std::int64_t>>& ranges,
                                                               std::int64_t size) {
  std::int64_t reached = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin > reached) return std::pair(reached, begin);
    reached = std::max(reached, end);
  }
  if (reached < size) return std::pair(reached, size);
  return std::nullopt;
}

}  // namespace

std::string_view kind_name(StateKind kind) {
  return kind_names[static_cast<std::size_t>(kind)];
}

std::optional<StateKind> kind_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kind_names.size(); ++i)
    if (kind_names[i] == name) return static_cast<StateKind>(i);
  return std::nullopt;
}

std::optional<std::int64_t> checked_elements(const Shape& shape) {
  std::int64_t product = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    // A 0 must not hide an overflow of the others: strides are products too.
    if (extent < 0 || __builtin_mul_overflow(product, std::max<std::int64_t>(extent, 1), &product)) return std::nullopt;
    empty = empty || extent == 0;
  }
  return empty ? 0 : product;
}

std::int64_t Box::elements() const {
  std::int64_t product = 1;
  for (std::size_t dim = 0; dim < begin.size(); ++dim) product *= end[dim] - begin[dim];
  return product;
}

std::string placement_problem(const Placement& placement) {
  const auto& [full_name, kind, shape, box, begin, end] = placement;
  if (full_name.empty()) return "a piece without a parameter name";
  const std::string name = printable(full_name);
  if (!checked_elements(shape)) return fmt::format("'{}': shape {} overflows or is negative", name, format_shape(shape));
  if (box.begin.size() != shape.size() || box.end.size() != shape.size())
    return fmt::format("'{}': a box of {} dims for shape {}", name, box.begin.size(), format_shape(shape));
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    if (box.begin[dim] < 0 || box.begin[dim] > box.end[dim] || box.end[dim] > shape[dim])
      return fmt::format("'{}': box {} is not inside shape {}", name, format_box(box), format_shape(shape));
  if (begin < 0 || begin > end || end > box.elements())
    return fmt::format("'{}': range [{}, {}) is not inside its box of {} elements", name, begin, end, box.elements());
  return "";
}

std::string format_placement(const Placement& placement) {
  const bool whole = placement.box == Box::whole(placement.shape);
  return fmt::format("{} ({}){}, elements [{}, {})", placement.name, kind_name(placement.kind),
                     whole ? "" : ", box " + format_box(placement.box), placement.begin, placement.end);
}

void for_each_common_run(const Placement& source, const Placement& target, const std::function<void(const Run&)>& visit) {
  BALEEN_CHECK(source.shape == target.shape, source.name, target.name);
  if (source.box == target.box) {
    visit_clipped(source, target, 0, 0, source.box.elements(), visit);
    return;
  }
  BoxIntersection(source, target).for_each_run(visit);  // boxes of a tensor without dims are equal, so there is a dim here
}

std::string coverage_problem(const std::vector<const Placement*>& placements) {
  if (placements.empty()) return "no piece at all";
  const Placement& first = *placements.front();
  const std::int64_t all = checked_elements(first.shape).value_or(0);
  std::vector<std::pair<const Box*, std::vector<std::pair<std::int64_t, std::int64_t>>>> boxes;
  for (const Placement* placement : placements) {
    if (placement->shape != first.shape)
      return fmt::format("'{}' has two shapes, {} and {}", first.name, format_shape(first.shape), format_shape(placement->shape));
    auto found = std::find_if(boxes.begin(), boxes.end(), [&](const auto& box) { return *box.first == placement->box; });
    if (found == boxes.end()) found = boxes.insert(boxes.end(), {&placement->box, {}});
    found->second.emplace_back(placement->begin, placement->end);
  }
  std::int64_t held = 0;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    auto& [box, ranges] = boxes[i];
    for (std::size_t j = 0; j < i; ++j)
      if (boxes_overlap(*box, *boxes[j].first))
        return fmt::format("'{}' ({}): boxes {} and {} overlap", first.name, kind_name(first.kind), format_box(*boxes[j].first),
                           format_box(*box));
    std::sort(ranges.begin(), ranges.end());
    if (const auto gap = first_gap(ranges, box->elements()))
      return fmt::format("'{}' ({}): elements [{}, {}) of box {} are in no file", first.name, kind_name(first.kind), gap->first,
                         gap->second, format_box(*box));
    held += box->elements();
  }
  if (held != all) return fmt::format("'{}' ({}): {} of {} elements are in no file", first.name, kind_name(first.kind), all - held, all);
  return "";
}

}  // namespace baleen::checkpoint
