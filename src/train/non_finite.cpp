#include "train/non_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"

namespace baleen {
namespace {

// Of fp32, or bf16, which has fp32's upper half: not finite where all bits of the exponent are set.
bool all_finite(const Tensor& tensor) {
  const auto count = static_cast<std::size_t>(tensor.elements());
  if (tensor.dtype() == DType::f32) {
    const auto* const values = static_cast<const float*>(tensor.data());
    return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
  }
  BALEEN_CHECK(tensor.dtype() == DType::bf16, dtype_name(tensor.dtype()));
  const auto* const halves = static_cast<const std::uint16_t*>(tensor.data());
  return std::all_of(halves, halves + count, [](std::uint16_t value) { return (value & 0x7f80u) != 0x7f80u; });
}

// The first parameter whose tensor is not finite, on the lowest rank that has one: "x (rank 2)". Empty where there is none.
template <class TensorOf>
std::string first_not_finite(Engine& engine, TensorOf tensor_of) {
  const UnitStorage& units = engine.units();
  Communicator& everyone = engine.everyone();
  std::array<char, 256> parameter{};
  std::int32_t finder = everyone.size();
  std::vector<std::byte> memory;
  for (const ParameterId id : units.parameters()) {
    const std::optional<Tensor> tensor = tensor_of(id);
    if (!tensor || all_finite(units.on_host(*tensor, memory))) continue;
    finder = everyone.rank();
    units.parameter(id).name.copy(parameter.data(), parameter.size() - 1);
    break;
  }
  everyone.all_reduce(&finder, &finder, 1, DType::i32, ReduceOp::min).wait();
  if (finder == everyone.size()) return "";
  everyone.broadcast(parameter.data(), parameter.size(), DType::u8, finder).wait();
  return fmt::format("{} (rank {})", parameter.data(), finder);
}

std::string first_weight_not_finite(Engine& engine) {
  return first_not_finite(engine, [&](ParameterId id) { return std::optional(engine.units().kept_weights(id)); });
}

}  // namespace

void check_finite(Engine& engine, double value, const std::string& what) {
  if (std::isfinite(value)) return;
  const std::string weight = first_weight_not_finite(engine);
  throw Error(ExitCode::bad_numbers, fmt::format("the {} is not finite", what),
              weight.empty() ? "all weights are finite" : "first parameter whose weights are not finite: " + weight,
              "use an earlier checkpoint (`baleen checkpoint list` names them), or another model");
}

std::string name_non_finite(Engine& engine, const HostBatch& batch, double valid_tokens) {
  engine.settle_weights();
  const UnitStorage& units = engine.units();
  const std::string weight = first_weight_not_finite(engine);
  std::int32_t loser = std::isfinite(engine.gradients(batch, valid_tokens)) ? engine.everyone().size() : engine.everyone().rank();
  engine.everyone().all_reduce(&loser, &loser, 1, DType::i32, ReduceOp::min).wait();
  const std::string gradient = first_not_finite(engine, [&](ParameterId id) -> std::optional<Tensor> {
    if (!units.parameter(id).trainable) return std::nullopt;
    return units.of_updated(units.updated_gradients(id.unit), id, units.part(id, units.updated(id.unit)));
  });
  std::string text =
      "first parameter with a non-finite gradient: " + (gradient.empty() ? "none when computed again: suspect the hardware" : gradient);
  if (loser < engine.everyone().size()) text += fmt::format("; the loss of rank {} is not finite", loser);
  if (!weight.empty()) text += "; first parameter whose weights are not finite themselves: " + weight;
  return text;
}

}  // namespace baleen
