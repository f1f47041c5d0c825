#include "comm/mesh.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"

namespace baleen {

std::string_view axis_name(Axis axis) {
  switch (axis) {
    case Axis::pp: return "pp";
    case Axis::replicate: return "replicate";
    case Axis::dp: return "dp";
    case Axis::cp: return "cp";
    case Axis::tp: return "tp";
  }
  return "?";
}

Mesh::Mesh(const MeshDegrees& degrees) : degrees_{degrees.pp, degrees.replicate, degrees.dp, degrees.cp, degrees.tp} {
  long long product = 1;
  for (const Axis axis : all_axes) {
    if (degree(axis) < 1)
      throw Error(ExitCode::bad_config, "the degree of axis " + std::string(axis_name(axis)) + " is " + std::to_string(degree(axis)),
                  "[parallelism]", "give every axis a degree of at least 1");
    product *= degree(axis);
    if (product > std::numeric_limits<int>::max())
      throw Error(ExitCode::bad_config, "the degrees multiply to more ranks than can be counted", "[parallelism]", "use smaller degrees");
  }
  world_size_ = static_cast<int>(product);
}

Mesh::Coordinates Mesh::coordinates(int rank) const {
  BALEEN_CHECK(rank >= 0 && rank < world_size_, "rank", rank, "world", world_size_);
  Coordinates out{};
  for (std::size_t axis = degrees_.size(); axis-- > 0;) {  // the innermost axis varies fastest
    out[axis] = rank % degrees_[axis];
    rank /= degrees_[axis];
  }
  return out;
}

int Mesh::rank_at(const Coordinates& coordinates) const {
  int rank = 0;
  for (std::size_t axis = 0; axis < degrees_.size(); ++axis) {
    BALEEN_CHECK(coordinates[axis] >= 0 && coordinates[axis] < degrees_[axis], "coordinate", coordinates[axis], "degree", degrees_[axis]);
    rank = rank * degrees_[axis] + coordinates[axis];
  }
  return rank;
}

std::string rank_grid(const Mesh& mesh) {
  std::vector<Axis> used;
  for (const Axis axis : all_axes)
    if (mesh.degree(axis) > 1) used.push_back(axis);
  if (used.empty()) return "rank 0 alone";
  // The innermost axis runs along a line, the one before it from bracket to bracket, the others from line to line.
  const Axis along = used.back();
  std::string text = "ranks by ";
  for (std::size_t i = 0; i < used.size(); ++i) text += (i == 0 ? "" : " x ") + std::string(axis_name(used[i]));
  const std::size_t outer = used.size() > 2 ? used.size() - 2 : 0;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const bool begins_run = mesh.coordinate(rank, along) == 0;
    const bool begins_line = begins_run && (used.size() < 2 || mesh.coordinate(rank, used[used.size() - 2]) == 0);
    if (begins_line) {
      text += "\n ";
      for (std::size_t i = 0; i < outer; ++i)
        text += " " + std::string(axis_name(used[i])) + "=" + std::to_string(mesh.coordinate(rank, used[i]));
      if (outer > 0) text += ":";
    }
    if (begins_run) text += " [";
    text += (begins_run ? "" : " ") + std::to_string(rank);
    if (mesh.coordinate(rank, along) + 1 == mesh.degree(along)) text += "]";
  }
  return text;
}

std::vector<int> Mesh::group(int rank, std::initializer_list<Axis> axes) const {
  const Coordinates here = coordinates(rank);
  std::vector<int> out;
  for (int other = 0; other < world_size_; ++other) {
    const Coordinates there = coordinates(other);
    const bool member = std::all_of(all_axes.begin(), all_axes.end(), [&](Axis axis) {
      const auto index = static_cast<std::size_t>(axis);
      return there[index] == here[index] || std::find(axes.begin(), axes.end(), axis) != axes.end();
    });
    if (member) out.push_back(other);
  }
  return out;
}

}  // namespace baleen
