// Writes a safetensors file front to back: no copy of the data, nothing to go back to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/safetensors.h"

namespace baleen::checkpoint {

class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    StoredType type = StoredType::F32;
    std::vector<std::int64_t> shape;
  };
  struct Result {
    std::size_t bytes = 0;  // of the whole file
    std::string checksum;   // XXH3-128 of the whole file, from the bytes in memory: what the disk made of them is another matter
  };

  // A checkpoint's file has a checksum and is on the disk when finish() returns. A copy of a model has neither: what it was made of is
  // still there, and it is as safe as what `cp` writes.
  enum class Care { checkpoint, copy };

  // Creates the file and writes its header: the tensors in the order they will come, padded with spaces to 8 bytes.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<Tensor> tensors, const std::map<std::string, std::string>& metadata,
                    Care care = Care::checkpoint);

  // The whole data of the next tensor. Returns their XXH3-128. Throws Error(bad_data) naming the file when the disk does not take them.
  // Error(rank_failed) when `stop` is asked for on the way.
  std::string append(const void* data, std::size_t bytes, const std::stop_token& stop = {});
  // The next bytes of the next tensor; parts must end where tensors end.
  void append_part(const void* data, std::size_t bytes);
  // After the last tensor: flushes to the disk and closes, or closes alone.
  Result finish();

 private:
  void write(const void* data, std::size_t bytes);

  FileWriter file_;
  Care care_;
  StreamHash hash_;
  std::vector<Tensor> tensors_;
  std::size_t next_ = 0;          // the tensor that is to come, or of which
  std::size_t part_written_ = 0;  // these bytes are written
};

}  // namespace baleen::checkpoint
