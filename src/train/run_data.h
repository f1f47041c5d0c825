// The data section of a configuration, opened and checked.
#pragma once

#include <limits>
#include <memory>
#include <string>

#include "data/loader.h"
#include "train/config.h"

namespace baleen {

struct RunData {
  std::unique_ptr<Dataset> train;  // nullptr where the config names none, as is
  std::unique_ptr<TokenDataset> validation;
  std::string tokenizer_json;   // Tokenizer::to_json(), or "" where the data name none
  std::int64_t vocabulary = 0;  // its tokens, or 0
  // Bytes of text behind a validation token; NaN where the sidecar does not say.
  double validation_bytes_per_token = std::numeric_limits<double>::quiet_NaN();
};

// Finds the tokenizer, resolves the model and the layout for `world` ranks, and opens the files. With training.steps = 0 no data are
// needed. `launcher` is as in resolve_layout. Throws Error(bad_config | bad_data).
RunData resolve_run(Config& config, int world, const std::string& launcher = "");

}  // namespace baleen
