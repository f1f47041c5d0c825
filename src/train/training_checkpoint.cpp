#include "train/training_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/writer.h"
#include "comm/gather_texts.h"

namespace baleen {
namespace {

using checkpoint::Box;
using checkpoint::FileRecord;
using checkpoint::Piece;
using checkpoint::Placement;
using checkpoint::StateKind;

// What this rank writes of a parameter: of copies, one rank writes.
SliceRange owned_range(const UnitStorage& units, ParameterId id) {
  const ParameterDescription& parameter = units.parameter(id);
  if (units.unit(id.unit).copy || !parameter.held.counts) return {};
  return units.part(id, parameter.trainable ? units.slice(id.unit) : units.layout(id.unit).frozen_slice(units.options().shard));
}

// The slices of every unit that this rank owns, cut at the borders of the parameters: what a frozen parameter has is its weight alone.
// `memory` keeps what the host cannot read where it is.
std::vector<Piece> owned_pieces(const UnitStorage& units, std::vector<std::vector<std::byte>>& memory) {
  std::vector<Piece> pieces;
  for (const ParameterId id : units.parameters()) {
    const ParameterDescription& parameter = units.parameter(id);
    const SliceRange range = owned_range(units, id);
    if (range.size() == 0) continue;
    const auto add = [&](StateKind kind, const Tensor& tensor) {
      pieces.push_back({placement_of(parameter, kind, range), tensor.dtype(), units.on_host(tensor, memory.emplace_back()).data()});
    };
    if (!parameter.trainable) {
      const auto begin = static_cast<std::int64_t>(range.begin - units.kept(id).begin);
      add(StateKind::weight, units.kept_weights(id).rows(begin, static_cast<std::int64_t>(range.size())));
      continue;
    }
    add(StateKind::weight, units.of_updated(units.master(id.unit), id, range));
    add(StateKind::exp_avg, units.of_updated(units.exp_avg(id.unit), id, range));
    add(StateKind::exp_avg_sq, units.of_updated(units.exp_avg_sq(id.unit), id, range));
  }
  return pieces;
}

// Replicas hold the same.
bool writes_checkpoint(const DataGroup& group) { return group.counts_norms(); }

// Runs `body` on the ranks for which `mine` holds; when it throws on one of them, throws on all.
template <class Body>
void collectively(Communicator& axis, bool mine, const char* what, Body body) {
  std::optional<Error> failure;
  if (mine) {
    try {
      body();
    } catch (const Error& error) {
      failure = error;
    }
  }
  std::int32_t failed = failure ? 1 : 0;
  axis.all_reduce(&failed, &failed, 1, DType::i32, ReduceOp::max).wait();
  if (failure) throw *failure;
  if (failed != 0) throw Error(ExitCode::rank_failed, fmt::format("another rank could not {}", what), "", "see that rank's message");
}

}  // namespace

std::string TrainingState::to_json() const {
  const auto embedded = [](const std::string& text) { return text.empty() ? nlohmann::json() : parse_json(text, "training state"); };
  return dump_json(nlohmann::json{{"step", step},
                                  {"tokens", tokens},
                                  {"model", embedded(model_config)},
                                  {"tokenizer", embedded(tokenizer)},
                                  {"data", embedded(data_fingerprint)}});
}

TrainingState TrainingState::from_json(const std::string& text, const std::string& where) {
  const auto parsed = parse_json(text, where);
  const auto integer = [&](const char* key) {
    if (!parsed.contains(key) || !parsed[key].is_number_integer())
      throw Error(ExitCode::bad_data, fmt::format("the checkpoint's training state lacks the integer '{}'", key), where, "use another checkpoint");
    return parsed[key].get<std::int64_t>();
  };
  const auto embedded = [&](const char* key) {
    return parsed.contains(key) && parsed[key].is_object() ? dump_json(parsed[key]) : std::string();
  };
  TrainingState state;
  state.step = integer("step");
  state.tokens = integer("tokens");
  state.model_config = embedded("model");
  state.tokenizer = embedded("tokenizer");
  state.data_fingerprint = embedded("data");
  return state;
}

std::uint64_t checkpoint_bytes(const DataGroup& group, const UnitStorage& units) {
  const StorageOptions& options = units.options();
  const std::size_t trainable = 3 * dtype_bytes(options.state), frozen = dtype_bytes(options.compute);
  std::uint64_t bytes = 0;
  for (const ParameterId id : units.parameters())
    if (writes_checkpoint(group)) bytes += owned_range(units, id).size() * (units.parameter(id).trainable ? trainable : frozen);
  group.everyone->all_reduce(&bytes, &bytes, 1, DType::u64, ReduceOp::sum).wait();
  return bytes;
}

checkpoint::Placement placement_of(const ParameterDescription& parameter, StateKind kind, SliceRange range) {
  const bool whole = parameter.held_whole();
  const auto& shape = whole ? parameter.shape : parameter.sliced_shape();
  return {parameter.name, kind, shape, whole ? Box::whole(shape) : Box{parameter.held.begin, parameter.held.end}, static_cast<std::int64_t>(range.begin),
          static_cast<std::int64_t>(range.end)};
}

void save_checkpoint(const std::filesystem::path& run, const TrainingState& state, const DataGroup& group, const UnitStorage& units,
                     std::int64_t keep) {
  Communicator& axis = *group.everyone;
  const bool first = axis.rank() == 0, writes = writes_checkpoint(group);
  const std::uint64_t bytes = checkpoint_bytes(group, units);
  const std::filesystem::path incomplete = checkpoint::checkpoints_folder(run) / (checkpoint::step_name(state.step) + ".incomplete");
  collectively(axis, first, "start a checkpoint", [&] { checkpoint::begin_checkpoint(run, state.step, bytes); });
  std::string records;
  collectively(axis, writes, "write its part of the checkpoint", [&] {
    std::vector<std::vector<std::byte>> memory;
    const std::vector<Piece> pieces = owned_pieces(units, memory);
    records = checkpoint::serialise_records(
        checkpoint::write_rank_files(incomplete, group.part, group.parts, state.step, pieces));
  });
  const std::vector<std::string> texts = gather_texts(axis, records);
  collectively(axis, first, "complete the checkpoint", [&] {
    std::vector<FileRecord> all;
    for (const std::string& text : texts) {
      if (text.empty()) continue;  // of a replica
      for (FileRecord& record : checkpoint::parse_records(text, "a rank's record of its files")) all.push_back(std::move(record));
    }
    checkpoint::commit_checkpoint(incomplete, state.step, group.parts, state.to_json(), std::move(all));
    checkpoint::prune_checkpoints(run, static_cast<int>(std::min<std::int64_t>(keep, 1 << 30)));
  });
}

void load_checkpoint(checkpoint::CheckpointReader& reader, UnitStorage& units, bool with_moments) {
  constexpr std::size_t chunk = std::size_t{1} << 22;  // elements: what a rank reads at once beside what it keeps
  std::vector<float> values;
  for (const ParameterId id : units.parameters()) {
    const ParameterDescription& parameter = units.parameter(id);
    const auto read = [&](StateKind kind, SliceRange range, const auto& store) {
      for (std::size_t begin = range.begin; begin < range.end; begin += chunk) {
        const SliceRange piece{begin, std::min(begin + chunk, range.end)};
        values.resize(piece.size());
        reader.read(placement_of(parameter, kind, piece), values.data());
        store(piece);
      }
    };
    read(StateKind::weight, units.kept(id), [&](SliceRange piece) { units.store(id, piece, values.data()); });
    if (!with_moments || !parameter.trainable) continue;
    const SliceRange updated = units.part(id, units.updated(id.unit));
    read(StateKind::exp_avg, updated, [&](SliceRange piece) { units.write(units.of_updated(units.exp_avg(id.unit), id, piece), values.data()); });
    read(StateKind::exp_avg_sq, updated, [&](SliceRange piece) { units.write(units.of_updated(units.exp_avg_sq(id.unit), id, piece), values.data()); });
  }
}

}  // namespace baleen
