#include "checkpoint/model_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/safetensors_writer.h"

namespace baleen::checkpoint {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{512} << 10;  // stays in the cache between reading and writing

std::uint64_t bytes_of(const ExportTensor& tensor) {
  return static_cast<std::uint64_t>(checked_elements(tensor.shape).value_or(0)) * stored_type_bytes(tensor.type);
}

// The first tensor of each file, and one more at the end.
std::vector<std::size_t> cut_into_files(const std::vector<ExportTensor>& tensors, std::uint64_t limit) {
  std::vector<std::size_t> begins{0};
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (bytes > 0 && bytes + bytes_of(tensors[i]) > limit) {
      begins.push_back(i);
      bytes = 0;
    }
    bytes += bytes_of(tensors[i]);
  }
  begins.push_back(tensors.size());
  return begins;
}

void write_file(const std::filesystem::path& path, const std::vector<ExportTensor>& tensors, std::size_t begin, std::size_t end,
                const ExportReader& read) {
  std::vector<SafetensorsWriter::Tensor> described;
  for (std::size_t i = begin; i < end; ++i) described.push_back({tensors[i].name, tensors[i].type, tensors[i].shape});
  SafetensorsWriter writer(path, std::move(described), {{"format", "pt"}}, SafetensorsWriter::Care::copy);
  for (std::size_t i = begin; i < end; ++i) {
    const std::int64_t elements = checked_elements(tensors[i].shape).value_or(0);
    const auto step = static_cast<std::int64_t>(chunk_bytes / stored_type_bytes(tensors[i].type));
    for (std::int64_t at = 0; at < elements; at += step) {
      const std::span<const std::byte> part = read(i, at, std::min(at + step, elements));
      writer.append_part(part.data(), part.size());
    }
    if (elements == 0) writer.append_part(nullptr, 0);
  }
  writer.finish();
}

}  // namespace

void write_model_weights(const std::filesystem::path& folder, const std::vector<ExportTensor>& tensors, const ExportReader& read,
                         std::uint64_t shard_bytes) {
  const std::vector<std::size_t> begins = cut_into_files(tensors, shard_bytes);
  const std::size_t files = begins.size() - 1;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::uint64_t total = 0;
  for (std::size_t file = 0; file < files; ++file) {
    const std::string name = files == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, files);
    write_file(folder / name, tensors, begins[file], begins[file + 1], read);
    for (std::size_t i = begins[file]; i < begins[file + 1]; ++i) {
      map[tensors[i].name] = name;
      total += bytes_of(tensors[i]);
    }
  }
  if (files == 1) return;
  const nlohmann::ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  write_plain_file(folder / "model.safetensors.index.json", dump_json(index, 2) + "\n");
}

}  // namespace baleen::checkpoint
