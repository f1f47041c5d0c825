// llama2.c's model files (https://github.com/karpathy/llama2.c, the legacy format, docs/formats.md) as baleen checkpoints.
#pragma once

#include <filesystem>

#include "model/model_config.h"

namespace baleen {

// What the header of a model file of llama2.c says. Throws Error(bad_data) unless it is one and the file has exactly the bytes that the
// header asks for.
ModelConfig read_llama2c_config(const std::filesystem::path& file);

// Writes the model, with the tokenizer in `tokenizer` (as load_tokenizer takes it; "" for none), as the checkpoint of step 0 of the run
// `out`: it can be generated from, evaluated and trained on. Throws Error(bad_data) for malformed files and a tokenizer of another
// vocabulary, Error(bad_config) when `out` holds checkpoints already.
void import_llama2c(const std::filesystem::path& file, const std::string& tokenizer, const std::filesystem::path& out);

}  // namespace baleen
