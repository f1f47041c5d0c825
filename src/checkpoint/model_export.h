// Weights into the files that a Hugging Face folder has: model.safetensors, or shards of at most 5 GB with model.safetensors.index.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"

namespace baleen::checkpoint {

struct ExportTensor {
  std::string name;
  Shape shape;
  StoredType type = StoredType::F32;
};

// Bytes of tensors in a file, as the Hub's own tools cut: a tensor is never divided, so that a larger one is alone in its file.
inline constexpr std::uint64_t default_shard_bytes = 5'000'000'000;

// The bytes of elements [begin, end) of tensor `index`, in its type; they are written before the next call.
using ExportReader = std::function<std::span<const std::byte>(std::size_t index, std::int64_t begin, std::int64_t end)>;

// Writes the tensors in their order into `folder`, reading half a megabyte at a time; the index comes last, and is written when there is
// more than one file. Throws Error(bad_data) naming the file that cannot be written.
void write_model_weights(const std::filesystem::path& folder, const std::vector<ExportTensor>& tensors, const ExportReader& read,
                         std::uint64_t shard_bytes = default_shard_bytes);

}  // namespace baleen::checkpoint
