#include "train/initial_weights.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "model/family.h"
#include "train/training_checkpoint.h"

namespace baleen {

bool begins_with_weights(const Config& config) {
  if (config.model_path.empty() || config.init == "random") {
    if (config.init == "weights")
      throw Error(ExitCode::bad_config, "model.init = \"weights\" without model.path", config.source,
                  "set model.path to a folder with weights");
    return false;
  }
  if (checkpoint::ModelWeights::present(config.model_path)) return true;
  if (config.init == "weights")
    throw Error(ExitCode::bad_data, "model.init = \"weights\", but model.path has no model.safetensors", config.model_path,
                "give a folder with weights, or set model.init = \"random\"");
  return false;
}

checkpoint::ModelWeights open_model_weights(const std::filesystem::path& folder, const ModelConfig& model) {
  checkpoint::ModelWeights weights(folder);
  std::vector<checkpoint::WantedTensor> wanted;
  for (const UnitDescription& unit : model_units(model))
    for (const ParameterDescription& parameter : unit.parameters) wanted.push_back({parameter.name, parameter.shape});
  weights.match(wanted, model.tie_word_embeddings);
  return weights;
}

void load_model_weights(const checkpoint::ModelWeights& weights, UnitStorage& units) {
  constexpr std::size_t chunk = std::size_t{1} << 18;  // elements; a megabyte of fp32 stays in the cache between the two steps
  std::vector<float> values(chunk);
  for (const ParameterId id : units.parameters()) {
    const ParameterDescription& parameter = units.parameter(id);
    const SliceRange range = units.kept(id);
    for (std::size_t begin = range.begin; begin < range.end; begin += chunk) {
      const SliceRange piece{begin, std::min(begin + chunk, range.end)};
      weights.read(placement_of(parameter, checkpoint::StateKind::weight, piece), values.data());
      units.store(id, piece, values.data());
    }
  }
}

namespace {

void load_timed(const Config& config, UnitStorage& units) {
  const auto begin = std::chrono::steady_clock::now();
  load_model_weights(open_model_weights(config.model_path, config.model), units);
  log::info("weights of {} read in {:.2f} s", config.model_path,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

}  // namespace

void set_initial_weights(const Config& config, UnitStorage& units) {
  if (begins_with_weights(config))
    load_timed(config, units);
  else
    units.initialize_weights(config.training.seed);
}

}  // namespace baleen
