// What a file or checkpoint holds, as `baleen inspect` and `baleen checkpoint` print it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace baleen::checkpoint {

// {"kind": "safetensors", "path", "bytes", "header_bytes", "elements", "metadata": {…},
//  "tensors": [{"name", "dtype", "shape", "elements", "bytes", "offset" (in the file)}, …]}
// Throws Error(bad_data) with the reason when the file is malformed.
nlohmann::json describe_safetensors(const std::filesystem::path& path);

// {"kind": "checkpoint", "path", "step", "world", "bytes", "elements" (of the weights), "training": {…},
//  "files": [{"name", "bytes", "checksum", "entries" (count)}, …], "parameters": [{"name", "shape", "kinds"}, …]}
nlohmann::json describe_checkpoint(const std::filesystem::path& directory);

}  // namespace baleen::checkpoint
