// A parameter is described once. Initial values, checkpoints, import, export, the global norm and `verify` all read this description.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace baleen {

enum class Initializer { zeros, ones, normal };

struct ParameterDescription {
  std::string name;                 // Hugging Face's name; unique in the model
  std::vector<std::int64_t> shape;  // global
  Initializer initializer = Initializer::normal;
  float standard_deviation = 0.02f;  // of Initializer::normal
  bool trainable = true;

  std::int64_t elements() const {
    std::int64_t product = 1;
    for (std::int64_t extent : shape) product *= extent;
    return product;
  }
  // Weight decay is for matrices: norm weights and biases are left alone (DESIGN.md section 7).
  bool decays() const { return shape.size() >= 2; }
};

// A run of parameters that is gathered, reduced and freed together: one transformer block, the embedding, the head.
struct UnitDescription {
  std::string name;
  std::vector<ParameterDescription> parameters;
};

// Where a parameter lives: its unit, and its place in the unit's list.
struct ParameterId {
  int unit = 0, index = 0;
};

}  // namespace baleen
