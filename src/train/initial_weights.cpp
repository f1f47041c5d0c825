#include "train/initial_weights.h"

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
  // Nobody who has such a folder wants to train from random weights without being told.
  if (const std::string others = checkpoint::ModelWeights::unread(config.model_path); !others.empty())
    throw Error(
        ExitCode::bad_data, fmt::format("model.path has weights that are not read ({}), and no model.safetensors", others),
        config.model_path,
        "save the model with save_pretrained of transformers, which writes safetensors, or set model.init = \"random\" to begin with "
        "random weights of its sizes");
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
  for (const ParameterId id : units.parameters())
    units.fill(id, [&](SliceRange range, float* out) {
      weights.read(placement_of(units.parameter(id), checkpoint::StateKind::weight, range), out);
    });
}

namespace {

void load_timed(const Config& config, UnitStorage& units) {
  const auto begin = std::chrono::steady_clock::now();
  load_model_weights(open_model_weights(config.model_path, config.model), units);
  log::info("weights of {} read in {:.3f} s", config.model_path,
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
