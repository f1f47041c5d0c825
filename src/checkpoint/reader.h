// Reads any range of any parameter from a checkpoint, whatever layout and number of ranks wrote it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace baleen::checkpoint {

// Not for several threads at once: it opens files as they are needed.
class CheckpointReader {
 public:
  // Reads the manifest and looks that each file is there with its size; the data are mapped when they are asked for.
  // Throws Error(bad_data) naming the file and key.
  explicit CheckpointReader(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  std::int64_t step() const { return manifest_.step; }
  // The trainer's own state: the JSON text of an object.
  const std::string& training() const { return manifest_.training; }

  struct Parameter {
    Shape shape;
    std::vector<StateKind> kinds;
  };
  // By global name.
  const std::map<std::string, Parameter>& parameters() const { return parameters_; }

  // Opens all files that hold state of this kind: what is deleted from now on can still be read.
  void open_files(StateKind kind);

  // In what precision a parameter's state was written: of its first entry.
  DType dtype(const std::string& name, StateKind kind) const;
  // The elements of `wanted` as fp32, out [wanted.elements()]; its shape is the one written, or, where either of the two is whole, another
  // of as many elements. Touches only the files and entries that hold them; each entry's checksum is compared when it is first used. Throws
  // Error(bad_data) naming the parameter (missing, of another shape, not whole) or the damaged file.
  void read(const Placement& wanted, float* out);
  // Elements [begin, end) of the whole tensor, whose shape must be `shape`.
  void read(const std::string& name, StateKind kind, const Shape& shape, std::int64_t begin, std::int64_t end, float* out) {
    read(Placement{name, kind, shape, Box::whole(shape), begin, end}, out);
  }

  // Reads every byte: each file's checksum and header, each entry's place and checksum, and that every parameter is whole. One line for
  // each thing that is wrong; empty when all is right.
  std::vector<std::string> verify();

 private:
  struct Source {
    std::size_t file = 0, entry = 0;
    const StoredTensor* checked = nullptr;  // in its open file, once the checksum was compared
  };
  using Key = std::pair<std::string, StateKind>;

  const SafetensorsFile& open(std::size_t file);
  bool all_whole(const std::vector<Source>& sources) const;
  // The entry's tensor in its file, which must agree with the manifest.
  const StoredTensor& tensor_of(std::size_t file, const EntryRecord& entry);
  const StoredTensor& checked_tensor(Source& source);
  std::vector<std::string> verify_file(std::size_t file);

  std::filesystem::path directory_;
  Manifest manifest_;
  std::map<std::string, Parameter> parameters_;
  std::map<Key, std::vector<Source>> sources_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // as manifest_.files; null until needed
};

}  // namespace baleen::checkpoint
