#include "checkpoint/describe.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"

namespace baleen::checkpoint {

using nlohmann::json;

json describe_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  json tensors = json::array();
  std::int64_t elements = 0;
  for (const StoredTensor& tensor : file.tensors()) {
    elements += tensor.elements();
    tensors.push_back({{"name", tensor.name},
                       {"dtype", stored_type_name(tensor.type)},
                       {"shape", tensor.shape},
                       {"elements", tensor.elements()},
                       {"bytes", tensor.end - tensor.begin},
                       {"offset", file.header().data_begin + tensor.begin}});
  }
  return {{"kind", "safetensors"},        {"path", path.string()},
          {"bytes", file.bytes().size()}, {"header_bytes", file.header().data_begin - 8},
          {"elements", elements},         {"metadata", file.header().metadata},
          {"tensors", std::move(tensors)}};
}

json describe_checkpoint(const std::filesystem::path& directory) {
  const CheckpointReader reader(directory);
  json files = json::array(), parameters = json::array();
  std::uint64_t bytes = 0;
  for (const FileRecord& file : reader.manifest().files) {
    bytes += file.bytes;
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}, {"entries", file.entries.size()}});
  }
  std::int64_t elements = 0;
  for (const auto& [name, parameter] : reader.parameters()) {
    elements += checked_elements(parameter.shape).value_or(0);
    json kinds = json::array();
    for (const StateKind kind : parameter.kinds) kinds.push_back(kind_name(kind));
    parameters.push_back({{"name", name}, {"shape", parameter.shape}, {"kinds", std::move(kinds)}});
  }
  return {{"kind", "checkpoint"},
          {"path", directory.string()},
          {"step", reader.step()},
          {"world", reader.manifest().world},
          {"bytes", bytes},
          {"elements", elements},
          {"training", parse_json(reader.training(), directory.string())},
          {"files", std::move(files)},
          {"parameters", std::move(parameters)}};
}

}  // namespace baleen::checkpoint
