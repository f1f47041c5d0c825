// Methods of the matrix library that were found fastest by timing, kept on disk so that the next run need not time again.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace baleen::ops::gpu {

// Everything that the choice of a method depends on: extents, strides, transpositions, alignments, types, accumulation.
using ProductKey = std::array<std::int64_t, 15>;
// The library's opaque description of a method. Valid for one version of the library on one kind of GPU.
using MethodBits = std::array<std::uint64_t, 8>;

// One file for each GPU and version of the library. A file that is damaged or of another GPU or version counts as empty and is written
// anew; a folder that cannot be written costs the time of choosing again, nothing else.
class MethodFile {
 public:
  // `name`: GPU and version, as they stand in the file's second line.
  MethodFile(std::filesystem::path path, std::string name);

  std::optional<MethodBits> find(const ProductKey& key) const;
  void add(const ProductKey& key, const MethodBits& bits);

 private:
  void read();
  std::filesystem::path path_;
  std::string name_;
  std::map<ProductKey, MethodBits> methods_;
};

// $BALEEN_CACHE_DIR, or baleen/ in $XDG_CACHE_HOME or ~/.cache; empty where none of them is set: nothing is kept.
std::filesystem::path cache_directory();

}  // namespace baleen::ops::gpu
