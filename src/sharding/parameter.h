// A parameter is described once. Initial values, checkpoints, import, export, the global norm and `verify` all read this description.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace baleen {

enum class Initializer { zeros, ones, normal };

// How tensor parallelism divides a parameter: over which dim, and in what portions.
struct TensorSplit {
  int dim = -1;  // of `view`; -1: every rank of the axis holds the whole parameter
  // Slices are runs of whole blocks of so many entries of the dim: of a head's rows, for example.
  std::int64_t block = 1;
  // The shape that is sliced, where it is not the parameter's own: the same elements in the same order. GPT-2's fused QKV [C, 3C] is
  // [C, 3, C], of which a rank holds a range of the last dim. Its trailing dims are one dim of the parameter.
  std::vector<std::int64_t> view = {};
  // Fewer blocks than ranks: several ranks hold the same block (KV heads).
  bool copies = false;
  // Whether each rank computes but a part of the gradient of what all hold: never, where tokens are divided, always.
  enum class PartialGradient { never, sequence_parallel, always } partial_gradient = PartialGradient::never;
};

// What a rank holds of a parameter: a box of its (viewed) shape. Empty: all of it.
struct HeldBox {
  enum class Copies { none, some, all };  // of the ranks of axis tp: how many others hold the same

  std::vector<std::int64_t> begin, end;
  Copies copies = Copies::none;
  bool counts = true;   // this rank's copy is the one that norms and checkpoints count
  bool summed = false;  // the copies' gradients are parts of a sum
};

struct ParameterDescription {
  std::string name;                 // Hugging Face's name; unique in the model
  std::vector<std::int64_t> shape;  // global
  Initializer initializer = Initializer::normal;
  float standard_deviation = 0.02f;  // of Initializer::normal
  bool trainable = true;
  TensorSplit split = {};
  HeldBox held = {};

  // Of the whole parameter, and of what this rank holds.
  std::int64_t global_elements() const;
  std::int64_t elements() const;
  bool held_whole() const { return elements() == global_elements(); }
  // The shape of what this rank holds: `shape` where it is all.
  std::vector<std::int64_t> held_shape() const;
  // The shape that `held` is a box of.
  const std::vector<std::int64_t>& sliced_shape() const { return split.view.empty() ? shape : split.view; }
  // Weight decay is for matrices: norm weights and biases are left alone (docs/numerics.md).
  bool decays() const { return shape.size() >= 2; }

  // Elements [begin, end) of what this rank holds, in runs that are contiguous in the whole parameter too:
  // visit(first held element, first global element, count).
  void for_each_run(SliceRange held_range, const std::function<void(std::size_t, std::size_t, std::size_t)>& visit) const;
};

enum class UnitKind { embedding, block, head };

// A run of parameters that is gathered, reduced and freed together: one transformer block, the embedding, the head.
struct UnitDescription {
  std::string name;
  std::vector<ParameterDescription> parameters;
  UnitKind kind = UnitKind::block;
  // Another pipeline stage holds the same unit, and that one counts: an embedding that the last stage's head is tied to.
  bool copy = false;
  int chunk = 0;  // of the rank's pipeline chunks, the one that the unit belongs to
};

// Where a parameter lives: its unit, and its place in the unit's list.
struct ParameterId {
  int unit = 0, index = 0;
};

}  // namespace baleen
