// What a model begins with: the weights of a Hugging Face folder, or random ones.
#pragma once

#include "checkpoint/model_weights.h"
#include "sharding/unit_storage.h"
#include "train/config.h"

namespace baleen {

// Whether a run of this config starts from the weights of model.path: it names a folder that has some, and model.init is not "random".
// Throws Error(bad_data) where init = "weights" and there are none, and where it is not set and all there are is in forms that are not
// read.
bool begins_with_weights(const Config& config);

// A folder's weights, matched to the parameters of the model. Throws Error(bad_data) as ModelWeights does.
checkpoint::ModelWeights open_model_weights(const std::filesystem::path& folder, const ModelConfig& model);

// Fills what this rank keeps of each weight, straight from the files, by all threads.
void load_model_weights(const checkpoint::ModelWeights& weights, UnitStorage& units);

// Either of the two, as the config says.
void set_initial_weights(const Config& config, UnitStorage& units);

}  // namespace baleen
