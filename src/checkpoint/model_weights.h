// The weights of a Hugging Face folder: model.safetensors, or (where that is not there) several files with model.safetensors.index.json.
// Any range of any parameter is read by itself, so that a rank takes what it keeps and nothing more.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"

namespace baleen::checkpoint {

// A tensor that a model needs.
struct WantedTensor {
  std::string name;
  Shape shape;
};

class ModelWeights {
 public:
  // Opens the files and checks their headers and the index. Throws Error(bad_data) naming the file and what is wrong with it.
  explicit ModelWeights(const std::filesystem::path& folder);
  // Whether a folder has weights in one of the two forms.
  static bool present(const std::filesystem::path& folder);
  // Files of a folder that seem to hold weights in other forms or under other names, "" if there are none: a few of them, for a message.
  static std::string unread(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }

  // Finds each wanted tensor, under its name or under that without its first part (files saved from the model without its head lack
  // "transformer." or "model."). With `tied` a stored lm_head.weight is passed by where its bytes are the embedding's; buffers that are
  // computed (rotary frequencies, causal masks) always are. Throws Error(bad_data) naming what is missing, of another shape, not
  // floating-point, not of the model, or a head of its own though `tied`. read() and stored() take the wanted names afterwards.
  void match(std::span<const WantedTensor> wanted, bool tied);

  // Elements of `wanted` as fp32, out [wanted.elements()]; only weights.
  void read(const Placement& wanted, float* out) const;
  // The bytes and the type as they are in the file.
  struct Stored {
    StoredType type = StoredType::F32;
    std::span<const std::byte> data;
    const std::filesystem::path* path = nullptr;  // the file, and where in it the data begin
    std::size_t offset = 0;
  };
  Stored stored(const std::string& name) const;

 private:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };
  void open_indexed(const std::filesystem::path& index);
  const SafetensorsFile& open(const std::string& name);
  void add_all(const SafetensorsFile& file);
  const Place& place(const std::string& name) const;
  bool same_bytes(const Place& a, const Place& b) const;

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  // by file name; for the headers
  // For the data: read in pieces, which costs less than mapping pages that are looked at once.
  std::map<const SafetensorsFile*, FileReader> readers_;
  std::map<std::string, Place> stored_;   // by the names in the files
  std::map<std::string, Place> matched_;  // by wanted names
};

}  // namespace baleen::checkpoint
