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

namespace baleen {
namespace {

using checkpoint::Box;
using checkpoint::FileRecord;
using checkpoint::Piece;
using checkpoint::Placement;
using checkpoint::StateKind;

// The slices of every unit that `rank` of `size` owns, cut at the borders of the parameters.
std::vector<Piece> owned_pieces(const UnitStorage& units, int rank) {
  std::vector<Piece> pieces;
  for (const ParameterId id : units.parameters()) {
    const ParameterDescription& parameter = units.parameter(id);
    BALEEN_CHECK(parameter.trainable, "a frozen parameter has no owner yet", parameter.name);
    const SliceRange slice = units.layout(id.unit).slice(rank);
    const std::size_t offset = units.layout(id.unit).offset(id.index), elements = static_cast<std::size_t>(parameter.elements());
    const std::size_t begin = std::max(slice.begin, offset), end = std::min(slice.end, offset + elements);
    if (begin >= end) continue;
    const auto add = [&](StateKind kind, const Tensor& tensor) {
      Placement placement{parameter.name, kind, parameter.shape, Box::whole(parameter.shape), static_cast<std::int64_t>(begin - offset),
                          static_cast<std::int64_t>(end - offset)};
      pieces.push_back({std::move(placement), DType::f32, tensor.as<float>() + (begin - offset)});
    };
    add(StateKind::weight, units.weight(id));
    add(StateKind::exp_avg, units.exp_avg(id));
    add(StateKind::exp_avg_sq, units.exp_avg_sq(id));
  }
  return pieces;
}

// Each rank's text, on every rank.
std::vector<std::string> gather_texts(Communicator& axis, const std::string& mine) {
  const auto size = static_cast<std::size_t>(axis.size());
  std::vector<std::uint64_t> lengths(size);
  const std::uint64_t length = mine.size();
  axis.all_gather(&length, lengths.data(), 1, DType::u64).wait();
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<char> padded(longest), all(longest * size);
  std::copy(mine.begin(), mine.end(), padded.begin());
  axis.all_gather(padded.data(), all.data(), longest, DType::u8).wait();
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < size; ++rank) texts.emplace_back(all.data() + rank * longest, lengths[rank]);
  return texts;
}

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

std::uint64_t checkpoint_bytes(const UnitStorage& units) { return static_cast<std::uint64_t>(units.parameter_count()) * 3 * sizeof(float); }

void save_checkpoint(const std::filesystem::path& run, const TrainingState& state, Communicator& axis, const UnitStorage& units, std::int64_t keep) {
  const bool first = axis.rank() == 0;
  const std::filesystem::path incomplete = checkpoint::checkpoints_folder(run) / (checkpoint::step_name(state.step) + ".incomplete");
  collectively(axis, first, "start a checkpoint", [&] { checkpoint::begin_checkpoint(run, state.step, checkpoint_bytes(units)); });
  std::string records;
  collectively(axis, true, "write its part of the checkpoint", [&] {
    const std::vector<Piece> pieces = owned_pieces(units, axis.rank());
    records = checkpoint::serialise_records(checkpoint::write_rank_files(incomplete, axis.rank(), axis.size(), state.step, pieces));
  });
  const std::vector<std::string> texts = gather_texts(axis, records);
  collectively(axis, first, "complete the checkpoint", [&] {
    std::vector<FileRecord> all;
    for (const std::string& text : texts)
      for (FileRecord& record : checkpoint::parse_records(text, "a rank's record of its files")) all.push_back(std::move(record));
    checkpoint::commit_checkpoint(incomplete, state.step, axis.size(), state.to_json(), std::move(all));
    checkpoint::prune_checkpoints(run, static_cast<int>(std::min<std::int64_t>(keep, 1 << 30)));
  });
}

void load_checkpoint(checkpoint::CheckpointReader& reader, UnitStorage& units, bool with_moments) {
  for (const ParameterId id : units.parameters()) {
    const ParameterDescription& parameter = units.parameter(id);
    const auto read = [&](StateKind kind, const Tensor& tensor) {
      reader.read(parameter.name, kind, parameter.shape, 0, parameter.elements(), tensor.as<float>());
    };
    read(StateKind::weight, units.weight(id));
    if (!with_moments || !parameter.trainable) continue;
    read(StateKind::exp_avg, units.exp_avg(id));
    read(StateKind::exp_avg_sq, units.exp_avg_sq(id));
  }
}

}  // namespace baleen
