// The axes of parallelism as a grid of ranks (docs/parallelism.md).
#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace baleen {

// From the outermost to the innermost: ranks that differ only in tp are neighbours, and so sit on the fastest links.
enum class Axis { pp, replicate, dp, cp, tp };
inline constexpr std::array<Axis, 5> all_axes{Axis::pp, Axis::replicate, Axis::dp, Axis::cp, Axis::tp};
std::string_view axis_name(Axis axis);

struct MeshDegrees {
  int pp = 1, replicate = 1, dp = 1, cp = 1, tp = 1;
};

class Mesh {
 public:
  // A rank's place on every axis, in the order of Axis.
  using Coordinates = std::array<int, all_axes.size()>;

  // Throws Error(bad_config) when a degree is below 1 or the product does not fit an int.
  explicit Mesh(const MeshDegrees& degrees);

  int world_size() const { return world_size_; }
  int degree(Axis axis) const { return degrees_[static_cast<std::size_t>(axis)]; }

  Coordinates coordinates(int rank) const;
  int coordinate(int rank, Axis axis) const { return coordinates(rank)[static_cast<std::size_t>(axis)]; }
  int rank_at(const Coordinates& coordinates) const;

  // The ranks that differ from `rank` only on the given axes, itself included, ascending: the members of its communicator over them. No
  // axis: the rank alone. All of them: the world.
  std::vector<int> group(int rank, std::initializer_list<Axis> axes) const;
  std::vector<int> group(int rank, Axis axis) const { return group(rank, {axis}); }

 private:
  Coordinates degrees_;
  int world_size_;
};

// Which rank has which place, for people: a line for each place on the outer axes, and in it the ranks of the two innermost that have more
// than one.
std::string rank_grid(const Mesh& mesh);

}  // namespace baleen
