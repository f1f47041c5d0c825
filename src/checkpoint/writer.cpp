#include "checkpoint/writer.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/safetensors_writer.h"

namespace baleen::checkpoint {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw Error(ExitCode::bad_data, "cannot create the checkpoint's folder: " + error.message(), path.string(),
                "check the permissions and the free space of the run directory");
}

// The name of a piece in its file. It tells a person what the tensor is and is unique because placements are.
std::string tensor_name(const Placement& placement) {
  std::string name = fmt::format("{}/{}", kind_name(placement.kind), placement.name);
  if (placement.box != Box::whole(placement.shape)) {
    name += "[";
    for (std::size_t dim = 0; dim < placement.shape.size(); ++dim)
      name += fmt::format("{}{}:{}", dim == 0 ? "" : ",", placement.box.begin[dim], placement.box.end[dim]);
    name += "]";
  }
  return name + fmt::format("@{}:{}", placement.begin, placement.end);
}

FileRecord write_file(const fs::path& path, const std::vector<const Piece*>& pieces, std::map<std::string, std::string> metadata,
                      const std::stop_token& stop) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  FileRecord record;
  record.name = path.filename().string();
  for (const Piece* piece : pieces) {
    const std::string name = tensor_name(piece->placement);
    tensors.push_back({name, stored_type_of(piece->dtype), {piece->placement.elements()}});
    record.entries.push_back({piece->placement, tensors.back().type, name, ""});
    metadata["piece:" + name] = placement_to_json(piece->placement);
  }
  SafetensorsWriter writer(path, std::move(tensors), metadata);
  for (std::size_t i = 0; i < pieces.size(); ++i)
    record.entries[i].checksum =
        writer.append(pieces[i]->data, static_cast<std::size_t>(pieces[i]->placement.elements()) * dtype_bytes(pieces[i]->dtype), stop);
  auto [bytes, checksum] = writer.finish();
  record.bytes = bytes;
  record.checksum = std::move(checksum);
  return record;
}

// One parameter and kind must be whole over all ranks' files: a hole would be found only when the checkpoint is needed.
void check_coverage(const std::vector<FileRecord>& records) {
  std::map<std::pair<std::string_view, StateKind>, std::vector<const Placement*>> by_parameter;
  for (const FileRecord& file : records)
    for (const EntryRecord& entry : file.entries) by_parameter[{entry.placement.name, entry.placement.kind}].push_back(&entry.placement);
  for (const auto& [key, placements] : by_parameter) {
    const std::string problem = coverage_problem(placements);
    BALEEN_CHECK(problem.empty(), problem);
  }
}

}  // namespace

void require_free_space(const fs::path& directory, std::uint64_t bytes) {
  struct statvfs status{};
  if (::statvfs(directory.c_str(), &status) != 0)
    throw Error(ExitCode::bad_data, fmt::format("cannot ask for the free space: {}", std::strerror(errno)), directory.string());
  const std::uint64_t free = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  if (bytes > free)
    throw Error(ExitCode::bad_data, fmt::format("not enough disk space for a checkpoint: it needs {} bytes and {} are free", bytes, free),
                directory.string(),
                "free some space, for example by deleting old checkpoints by hand ([checkpoint] keep deletes none before a new one is "
                "saved), or write to another disk with --out");
}

fs::path begin_checkpoint(const fs::path& run, std::int64_t step, std::uint64_t expected_bytes) {
  const fs::path folder = checkpoints_folder(run);
  make_folder(folder);
  clean_checkpoints_folder(run);
  require_free_space(folder, expected_bytes);
  const fs::path incomplete = folder / (step_name(step) + ".incomplete");
  make_folder(incomplete);
  return incomplete;
}

std::vector<FileRecord> write_rank_files(const fs::path& incomplete, int rank, int world, std::int64_t step, std::span<const Piece> pieces,
                                         const std::stop_token& stop) {
  BALEEN_CHECK(rank >= 0 && rank < world, rank, world);
  std::vector<const Piece*> weights, moments;
  std::uint64_t bytes = 0;
  for (const Piece& piece : pieces) {
    const std::string problem = placement_problem(piece.placement);
    BALEEN_CHECK(problem.empty(), problem);
    BALEEN_CHECK(piece.dtype == DType::f32 || piece.dtype == DType::bf16, piece.placement.name, dtype_name(piece.dtype));
    (piece.placement.kind == StateKind::weight ? weights : moments).push_back(&piece);
    bytes += static_cast<std::uint64_t>(piece.placement.elements()) * dtype_bytes(piece.dtype) + 1024;  // and its part of the header
  }
  require_free_space(incomplete, bytes);

  const std::map<std::string, std::string> metadata{{"format", "baleen-checkpoint"},
                                                    {"format_version", std::to_string(manifest_version)},
                                                    {"step", std::to_string(step)},
                                                    {"rank", std::to_string(rank)},
                                                    {"world", std::to_string(world)}};
  std::vector<FileRecord> records;
  std::vector<fs::path> paths;
  try {
    for (const auto& [prefix, group] : {std::pair("model", &weights), std::pair("optimizer", &moments)}) {
      if (group->empty()) continue;
      paths.push_back(incomplete / fmt::format("{}_{:05}-of-{:05}.safetensors", prefix, rank, world));
      records.push_back(write_file(paths.back(), *group, metadata, stop));
    }
    sync_directory(incomplete);
  } catch (...) {
    std::error_code ignored;  // the first failure is the one to report
    for (const fs::path& path : paths) fs::remove(path, ignored);
    throw;
  }
  return records;
}

fs::path commit_checkpoint(const fs::path& incomplete, std::int64_t step, int world, const std::string& training,
                           std::vector<FileRecord> records) {
  BALEEN_CHECK(incomplete.filename() == step_name(step) + ".incomplete", incomplete.string(), step);
  check_coverage(records);
  for (const FileRecord& record : records) {
    std::error_code error;
    const auto size = fs::file_size(incomplete / record.name, error);
    if (error || size != record.bytes)
      throw Error(ExitCode::bad_data,
                  error ? "a rank's checkpoint file is not visible to rank 0: " + error.message()
                        : fmt::format("a rank's checkpoint file has {} bytes and {} were written", size, record.bytes),
                  (incomplete / record.name).string(), "put the run directory on a file system that all machines share");
  }
  {
    FileWriter writer(incomplete / manifest_file_name);
    writer.write(manifest_to_text({step, world, training, std::move(records)}));
    writer.sync_and_close();
  }
  sync_directory(incomplete);
  publish_checkpoint(incomplete);
  return incomplete.parent_path() / step_name(step);
}

}  // namespace baleen::checkpoint
