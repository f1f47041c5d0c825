#include "train/training_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace baleen {
namespace {

using checkpoint::Box;
using checkpoint::StateKind;

}  // namespace

std::string TrainingState::to_json() const {
  const auto embedded = [](const std::string& text) { return text.empty() ? nlohmann::json() : parse_json(text, "training state"); };
  return dump_json(nlohmann::json{{"step", step},
                                  {"tokens", tokens},
                                  {"skipped_batches", skipped_batches},
                                  {"losses", losses},
                                  {"rewinds", rewinds},
                                  {"skipped_in_a_row", skipped_in_a_row},
                                  {"model", embedded(model_config)},
                                  {"tokenizer", embedded(tokenizer)},
                                  {"data", embedded(data_fingerprint)}});
}

TrainingState TrainingState::from_json(const std::string& text, const std::string& where) {
  const auto parsed = parse_json(text, where);
  const auto integer = [&](const char* key) {
    if (!parsed.contains(key) || !parsed[key].is_number_integer())
      throw Error(ExitCode::bad_data, fmt::format("the checkpoint's training state lacks the integer '{}'", key), where,
                  "use another checkpoint");
    return parsed[key].get<std::int64_t>();
  };
  const auto embedded = [&](const char* key) {
    return parsed.contains(key) && parsed[key].is_object() ? dump_json(parsed[key]) : std::string();
  };
  TrainingState state;
  state.step = integer("step");
  state.tokens = integer("tokens");
  // Older checkpoints lack these.
  if (parsed.contains("skipped_batches")) state.skipped_batches = integer("skipped_batches");
  if (parsed.contains("rewinds")) state.rewinds = integer("rewinds");
  if (parsed.contains("skipped_in_a_row")) state.skipped_in_a_row = integer("skipped_in_a_row");
  if (parsed.contains("losses")) {
    try {
      parsed["losses"].get_to(state.losses);
    } catch (const nlohmann::json::exception&) {
      throw Error(ExitCode::bad_data, "the checkpoint's training state has 'losses' that are no pairs of a step and a number", where,
                  "use another checkpoint");
    }
  }
  state.model_config = embedded("model");
  state.tokenizer = embedded("tokenizer");
  state.data_fingerprint = embedded("data");
  return state;
}

checkpoint::Placement placement_of(const ParameterDescription& parameter, StateKind kind, SliceRange range) {
  const bool whole = parameter.held_whole();
  const auto& shape = whole ? parameter.shape : parameter.sliced_shape();
  return {parameter.name,
          kind,
          shape,
          whole ? Box::whole(shape) : Box{parameter.held.begin, parameter.held.end},
          static_cast<std::int64_t>(range.begin),
          static_cast<std::int64_t>(range.end)};
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
    read(StateKind::exp_avg, updated,
         [&](SliceRange piece) { units.write(units.of_updated(units.exp_avg(id.unit), id, piece), values.data()); });
    read(StateKind::exp_avg_sq, updated,
         [&](SliceRange piece) { units.write(units.of_updated(units.exp_avg_sq(id.unit), id, piece), values.data()); });
  }
}

}  // namespace baleen
