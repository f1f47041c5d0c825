// Where a piece of a parameter lies: a flat range inside a box inside the global tensor. Whatever layout wrote a checkpoint, and whatever
// layout reads it, copying between them is the intersection of two such places.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace baleen::checkpoint {

// What is kept of a parameter: its (master) weight and Adam's two moments.
enum class StateKind : std::uint8_t { weight, exp_avg, exp_avg_sq };

std::string_view kind_name(StateKind kind);
std::optional<StateKind> kind_from_name(std::string_view name);

using Shape = std::vector<std::int64_t>;

// Elements of a shape, or nothing when a dimension is negative or the product overflows.
std::optional<std::int64_t> checked_elements(const Shape& shape);

// The part of a tensor that lies in [begin, end) of each dim: a slice of tensor parallelism, or the whole.
struct Box {
  Shape begin, end;

  static Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }
  std::int64_t elements() const;
  bool operator==(const Box&) const = default;
};

// Elements [begin, end) of a box, counted row-major inside the box.
struct Placement {
  std::string name;  // the parameter's global name
  StateKind kind = StateKind::weight;
  Shape shape;  // of the global tensor
  Box box;
  std::int64_t begin = 0, end = 0;

  std::int64_t elements() const { return end - begin; }
};

// A placement and its elements in memory.
struct Piece {
  Placement placement;
  DType dtype = DType::f32;    // f32 or bf16
  const void* data = nullptr;  // placement.elements() of dtype
};

// What is wrong with a placement (a box outside the shape, a range outside the box, …), or empty.
std::string placement_problem(const Placement& placement);

// "model.norm.weight (exp_avg), box [0:64, 0:32], elements [0, 2048)", for messages.
std::string format_placement(const Placement& placement);

// A run of elements that lie one after the other both in a source and in a target placement; offsets count from the start of each range.
struct Run {
  std::int64_t source = 0, target = 0, count = 0;
};
// Calls `visit` for each run that the two placements, of one tensor, have in common.
void for_each_common_run(const Placement& source, const Placement& target, const std::function<void(const Run&)>& visit);

// Checks that placements of one parameter and kind hold every element of its tensor. Equal boxes may overlap in ranges (replicas);
// different boxes may not overlap. Returns what is missing or wrong, or empty.
std::string coverage_problem(const std::vector<const Placement*>& placements);

}  // namespace baleen::checkpoint
