#include "model/tensor_slices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace baleen {
namespace {

// Matrix products like dimensions that are multiples of this; slices keep to it where the dim has enough of them.
constexpr std::int64_t preferred_block = 64;

std::int64_t usable_block(std::int64_t extent, std::int64_t block, int size) {
  if (block > 1) return block;
  std::int64_t usable = preferred_block;
  while (usable > 1 && (extent % usable != 0 || extent / usable < size)) usable /= 2;
  return usable;
}

HeldBox slice_parameter(const ParameterDescription& parameter, const TensorRank& tensor) {
  const TensorSplit& split = parameter.split;
  const auto& shape = parameter.sliced_shape();
  HeldBox held{std::vector<std::int64_t>(shape.size(), 0), shape};
  if (split.dim < 0) {
    using PartialGradient = TensorSplit::PartialGradient;
    held.copies = HeldBox::Copies::all;
    held.counts = tensor.rank == 0;
    held.summed = split.partial_gradient == PartialGradient::always ||
                  (split.partial_gradient == PartialGradient::sequence_parallel && tensor.sequence_parallel);
    return held;
  }
  const auto dim = static_cast<std::size_t>(split.dim);
  const std::int64_t extent = shape[dim], block = usable_block(extent, split.block, tensor.size), blocks = extent / block;
  BALEEN_CHECK(extent % block == 0, parameter.name, extent, block);
  if (blocks >= tensor.size) {
    held.begin[dim] = tensor.rank * blocks / tensor.size * block;
    held.end[dim] = (tensor.rank + 1) * blocks / tensor.size * block;
    return held;
  }
  BALEEN_CHECK(split.copies && tensor.size % blocks == 0, parameter.name, blocks, tensor.size);
  const std::int64_t holders = tensor.size / blocks, own = tensor.rank / holders;
  held.begin[dim] = own * block;
  held.end[dim] = (own + 1) * block;
  held.copies = blocks == 1 ? HeldBox::Copies::all : HeldBox::Copies::some;
  held.counts = tensor.rank % holders == 0;
  held.summed = true;  // of the query heads that share it
  return held;
}

}  // namespace

void slice_units(std::vector<UnitDescription>& units, const TensorRank& tensor) {
  if (tensor.size == 1) return;
  for (UnitDescription& unit : units)
    for (ParameterDescription& parameter : unit.parameters) parameter.held = slice_parameter(parameter, tensor);
}

std::string tensor_refusal(const ModelConfig& config, int size) {
  if (size == 1) return "";
  const std::int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  if (heads % size != 0) return fmt::format("{} attention heads cannot be divided by tp = {}", heads, size);
  if (kv_heads % size != 0 && size % kv_heads != 0)
    return fmt::format("{} KV heads can neither be divided among tp = {} ranks nor be held by equally many each", kv_heads, size);
  if (config.intermediate_size < size) return fmt::format("intermediate_size {} is less than tp = {}", config.intermediate_size, size);
  if (config.vocab_size < size) return fmt::format("the vocabulary of {} is less than tp = {}", config.vocab_size, size);
  return "";
}

}  // namespace baleen
