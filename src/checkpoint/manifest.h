// manifest.json: what a checkpoint consists of. It is written last, so that a checkpoint with a manifest is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"

namespace baleen::checkpoint {

inline constexpr std::string_view manifest_file_name = "manifest.json";
inline constexpr std::int64_t manifest_version = 1;

// A piece as it stands in a file.
struct EntryRecord {
  Placement placement;
  StoredType type = StoredType::F32;  // F32 or BF16
  std::string tensor;                 // its name in the file
  std::string checksum;               // XXH3-128 of its data
};

struct FileRecord {
  std::string name;  // a plain file name
  std::uint64_t bytes = 0;
  std::string checksum;  // XXH3-128 of the whole file
  std::vector<EntryRecord> entries;
};

struct Manifest {
  std::int64_t step = 0;
  int world = 1;         // ranks that wrote it
  std::string training;  // the trainer's own state: the JSON text of an object
  std::vector<FileRecord> files;
};

// Placements as JSON, as a file's __metadata__ has them too: {"name","kind","shape","box":[[begin, end], …],"range":[begin, end]}.
std::string placement_to_json(const Placement& placement);

// Records as text and back, for ranks that send theirs to the rank that writes the manifest. Parsing throws Error(bad_data) naming
// `where` and the key.
std::string serialise_records(const std::vector<FileRecord>& records);
std::vector<FileRecord> parse_records(std::string_view text, const std::string& where);

// One file a line and one entry a line; "checksum" covers everything else, so that a damaged or edited manifest is noticed.
std::string manifest_to_text(const Manifest& manifest);
// Every field's type and range, names that are plain file names, no name twice. Throws Error(bad_data) naming `where` and the key.
Manifest parse_manifest(std::string_view text, const std::string& where);
Manifest read_manifest(const std::filesystem::path& checkpoint);

}  // namespace baleen::checkpoint
