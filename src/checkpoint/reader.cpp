#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"

namespace baleen::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* damaged_remedy = "use another checkpoint, or this file from a backup";

std::string hash_of(std::span<const std::byte> bytes) {
  StreamHash hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

// Elements of [0, size) that no range of `covered` holds; sorts it.
std::int64_t first_missing(std::vector<std::pair<std::int64_t, std::int64_t>>& covered, std::int64_t size) {
  std::sort(covered.begin(), covered.end());
  std::int64_t reached = 0;
  for (const auto& [begin, end] : covered) {
    if (begin > reached) break;
    reached = std::max(reached, end);
  }
  return std::min(reached, size);
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& directory) : directory_(directory), manifest_(read_manifest(directory)) {
  files_.resize(manifest_.files.size());
  for (std::size_t file = 0; file < manifest_.files.size(); ++file) {
    const FileRecord& record = manifest_.files[file];
    std::error_code error;
    const auto size = fs::file_size(directory / record.name, error);
    if (error)
      throw Error(ExitCode::bad_data, "a file of the checkpoint is missing: " + error.message(), (directory / record.name).string(),
                  damaged_remedy);
    if (size != record.bytes)
      throw Error(ExitCode::bad_data,
                  fmt::format("a file of the checkpoint {}: it has {} bytes and the manifest says {}",
                              size < record.bytes ? "is truncated" : "has grown", size, record.bytes),
                  (directory / record.name).string(), damaged_remedy);
    for (std::size_t entry = 0; entry < record.entries.size(); ++entry) {
      const Placement& placement = record.entries[entry].placement;
      const auto [position, inserted] = parameters_.try_emplace(placement.name, Parameter{placement.shape, {}});
      Parameter& parameter = position->second;
      if (parameter.shape != placement.shape)
        throw Error(ExitCode::bad_data,
                    fmt::format("malformed checkpoint: parameter '{}' has two shapes, {} and {}", printable(placement.name),
                                format_shape(parameter.shape), format_shape(placement.shape)),
                    (directory / manifest_file_name).string(), damaged_remedy);
      if (std::find(parameter.kinds.begin(), parameter.kinds.end(), placement.kind) == parameter.kinds.end())
        parameter.kinds.push_back(placement.kind);
      sources_[{placement.name, placement.kind}].push_back({file, entry, nullptr});
    }
  }
}

const SafetensorsFile& CheckpointReader::open(std::size_t file) {
  if (files_[file] == nullptr) files_[file] = std::make_unique<SafetensorsFile>(directory_ / manifest_.files[file].name);
  return *files_[file];
}

void CheckpointReader::open_files(StateKind kind) {
  for (const auto& [key, sources] : sources_)
    if (key.second == kind)
      for (const Source& source : sources) open(source.file);
}

const StoredTensor& CheckpointReader::tensor_of(std::size_t file, const EntryRecord& entry) {
  const StoredTensor* tensor = open(file).find(entry.tensor);
  if (tensor == nullptr || tensor->type != entry.type || tensor->elements() != entry.placement.elements())
    throw Error(ExitCode::bad_data, fmt::format("the file does not hold what the manifest says of '{}'", printable(entry.tensor)),
                open(file).path().string(), damaged_remedy);
  return *tensor;
}

const StoredTensor& CheckpointReader::checked_tensor(Source& source) {
  if (source.checked != nullptr) return *source.checked;
  const EntryRecord& entry = manifest_.files[source.file].entries[source.entry];
  const StoredTensor& tensor = tensor_of(source.file, entry);
  if (hash_of(open(source.file).data(tensor)) != entry.checksum)
    throw Error(ExitCode::bad_data,
                fmt::format("damaged checkpoint: the data of '{}' do not match their checksum", printable(entry.tensor)),
                open(source.file).path().string(), damaged_remedy);
  source.checked = &tensor;
  return tensor;
}

DType CheckpointReader::dtype(const std::string& name, StateKind kind) const {
  const auto found = sources_.find({name, kind});
  BALEEN_CHECK(found != sources_.end() && !found->second.empty(), name);
  const Source& source = found->second.front();
  return manifest_.files[source.file].entries[source.entry].type == StoredType::BF16 ? DType::bf16 : DType::f32;
}

namespace {

// Whether the dims of `view` are those of `shape`, some of them split: [C, 3, C] is a view of [C, 3C].
bool is_view_of(const Shape& view, const Shape& shape) {
  std::size_t dim = 0;
  for (const std::int64_t extent : shape) {
    std::int64_t product = 1;
    do {
      if (dim == view.size()) return false;
      product *= view[dim++];
    } while (product < extent);
    if (product != extent) return false;
  }
  return dim == view.size();
}

}  // namespace

bool CheckpointReader::all_whole(const std::vector<Source>& sources) const {
  return std::all_of(sources.begin(), sources.end(), [&](const Source& source) {
    const Placement& placement = manifest_.files[source.file].entries[source.entry].placement;
    return placement.box == Box::whole(placement.shape);
  });
}

void CheckpointReader::read(const Placement& wanted, float* out) {
  const std::string problem = placement_problem(wanted);
  BALEEN_CHECK(problem.empty(), problem);
  const auto found = sources_.find({wanted.name, wanted.kind});
  if (found == sources_.end())
    throw Error(ExitCode::bad_data, fmt::format("the checkpoint has no {} of parameter '{}'", kind_name(wanted.kind), wanted.name),
                directory_.string(), "resume with the model config that wrote it");
  const Shape& shape = parameters_.at(wanted.name).shape;
  const bool same_elements = is_view_of(shape, wanted.shape) || is_view_of(wanted.shape, shape);
  // What is whole can be looked at in either shape (of a fused tensor, what a rank of tensor parallelism has is a box of a view).
  const bool look_at_wanted = shape != wanted.shape && same_elements && wanted.box == Box::whole(wanted.shape);
  const bool look_at_stored = shape != wanted.shape && same_elements && !look_at_wanted && all_whole(found->second);
  if (shape != wanted.shape && !look_at_wanted && !look_at_stored)
    throw Error(ExitCode::bad_data,
                fmt::format("parameter '{}' has shape {} in the checkpoint and {} in the model", wanted.name, format_shape(shape),
                            format_shape(wanted.shape)),
                directory_.string(), "resume with the model config that wrote it");

  Placement target = wanted;
  if (look_at_wanted) target.shape = shape, target.box = Box::whole(shape);
  std::vector<std::pair<std::int64_t, std::int64_t>> covered;
  for (Source& source : found->second) {
    Placement place = manifest_.files[source.file].entries[source.entry].placement;
    if (look_at_stored) place.shape = wanted.shape, place.box = Box::whole(wanted.shape);
    for_each_common_run(place, target, [&](const Run& run) {
      const StoredTensor& tensor = checked_tensor(source);
      open(source.file).read_floats(tensor, run.source, run.count, out + run.target);
      covered.emplace_back(run.target, run.target + run.count);
    });
  }
  if (const std::int64_t missing = first_missing(covered, wanted.elements()); missing < wanted.elements())
    throw Error(
        ExitCode::bad_data,
        fmt::format("the checkpoint is not whole: element {} of {} is in no file", wanted.begin + missing, format_placement(wanted)),
        directory_.string(), damaged_remedy);
}

std::vector<std::string> CheckpointReader::verify_file(std::size_t file) {
  const FileRecord& record = manifest_.files[file];
  std::vector<std::string> problems;
  try {
    const SafetensorsFile& opened = open(file);
    if (hash_of(opened.bytes()) != record.checksum)
      problems.push_back(fmt::format("{}: its bytes do not match the file's checksum", record.name));
    if (opened.tensors().size() != record.entries.size())
      problems.push_back(
          fmt::format("{}: {} tensors and the manifest has {}", record.name, opened.tensors().size(), record.entries.size()));
    for (const EntryRecord& entry : record.entries) {
      const StoredTensor& tensor = tensor_of(file, entry);
      if (hash_of(opened.data(tensor)) != entry.checksum)
        problems.push_back(fmt::format("{}: the data of '{}' do not match their checksum", record.name, printable(entry.tensor)));
      const auto stated = opened.header().metadata.find("piece:" + entry.tensor);
      if (stated == opened.header().metadata.end() || stated->second != placement_to_json(entry.placement))
        problems.push_back(fmt::format("{}: the file and the manifest disagree on where '{}' lies", record.name, printable(entry.tensor)));
    }
  } catch (const Error& error) {
    problems.push_back(fmt::format("{}: {}", record.name, error.what_is_wrong()));
  }
  return problems;
}

std::vector<std::string> CheckpointReader::verify() {
  std::vector<std::string> problems;
  for (std::size_t file = 0; file < files_.size(); ++file) {
    const auto found = verify_file(file);
    problems.insert(problems.end(), found.begin(), found.end());
    files_[file].reset();  // one map at a time
  }
  for (auto& [key, sources] : sources_) {
    std::vector<const Placement*> placements;
    for (Source& source : sources) {
      source.checked = nullptr;  // it pointed into a file closed above
      placements.push_back(&manifest_.files[source.file].entries[source.entry].placement);
    }
    if (const std::string problem = coverage_problem(placements); !problem.empty()) problems.push_back(problem);
  }
  return problems;
}

}  // namespace baleen::checkpoint
