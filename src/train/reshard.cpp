#include "train/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <list>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/run_directory.h"
#include "checkpoint/writer.h"
#include "model/family.h"
#include "sharding/unit_storage.h"
#include "train/training_checkpoint.h"

namespace baleen {
namespace {

using checkpoint::Box;
using checkpoint::Piece;
using checkpoint::Placement;
using checkpoint::StateKind;

// What shard `shard` of the layout holds of the checkpoint, with the memory that the pieces point to.
class Shard {
 public:
  Shard(checkpoint::CheckpointReader& reader, const UnitStorage& layout, int shard) {
    for (const ParameterId id : layout.parameters()) {
      const ParameterDescription& parameter = layout.parameter(id);
      const SliceRange range = layout.part(id, layout.layout(id.unit).slice(shard));
      const auto found = reader.parameters().find(parameter.name);
      if (range.size() == 0 || found == reader.parameters().end()) continue;
      for (const StateKind kind : found->second.kinds) add(reader, parameter, kind, range);
    }
  }
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  void add(checkpoint::CheckpointReader& reader, const ParameterDescription& parameter, StateKind kind, SliceRange range) {
    Placement placement{parameter.name,
                        kind,
                        parameter.shape,
                        Box::whole(parameter.shape),
                        static_cast<std::int64_t>(range.begin),
                        static_cast<std::int64_t>(range.end)};
    const DType dtype = reader.dtype(parameter.name, kind);
    std::vector<float> values(range.size());
    reader.read(placement, values.data());
    std::vector<std::byte>& memory = memory_.emplace_back(range.size() * dtype_bytes(dtype));
    store_floats(Tensor(memory.data(), dtype, {static_cast<std::int64_t>(range.size())}), values.data());  // what was bf16 stays exact
    pieces_.push_back({std::move(placement), dtype, memory.data()});
  }

  std::list<std::vector<std::byte>> memory_;
  std::vector<Piece> pieces_;
};

std::filesystem::path find_checkpoint(const std::filesystem::path& run, std::int64_t step) {
  const auto entries = checkpoint::list_checkpoints(run);
  if (entries.empty()) throw Error(ExitCode::bad_data, "no checkpoints here", run.string(), "give a run directory of `baleen train`");
  if (step < 0) return entries.back().directory;
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.step == step; });
  if (found == entries.end())
    throw Error(ExitCode::bad_data, fmt::format("no checkpoint of step {}", step), run.string(),
                "`baleen checkpoint list RUN` shows what is there");
  return found->directory;
}

}  // namespace

std::int64_t reshard_checkpoint(const std::filesystem::path& run, std::int64_t step, int ranks) {
  find_checkpoint(run, step);  // before the lock makes a folder of what is none
  const checkpoint::RunDirectoryLock lock(run);
  checkpoint::CheckpointReader reader(find_checkpoint(run, step));
  const TrainingState state = TrainingState::from_json(reader.training(), reader.directory().string());
  const ModelConfig config = parse_model_config(state.model_config, reader.directory().string());
  const auto device = create_cpu_device();
  const UnitStorage layout(*device, model_units(config), ranks, StorageKind::layout_only);
  std::uint64_t bytes = 0;
  for (const auto& file : reader.manifest().files) bytes += file.bytes;
  const std::filesystem::path incomplete = checkpoint::begin_checkpoint(run, reader.step(), bytes);
  std::vector<checkpoint::FileRecord> records;
  for (int rank = 0; rank < ranks; ++rank) {
    const Shard shard(reader, layout, rank);
    for (auto& record : checkpoint::write_rank_files(incomplete, rank, ranks, reader.step(), shard.pieces()))
      records.push_back(std::move(record));
  }
  checkpoint::commit_checkpoint(incomplete, reader.step(), ranks, reader.training(), std::move(records));
  return reader.step();
}

}  // namespace baleen
