// Models as the folders that transformers reads: config.json, generation_config.json, safetensors, the tokenizer's files.
#pragma once

#include <filesystem>
#include <string>

namespace baleen {

// Writes the model in `folder` (any that ModelFolder takes) to the new folder `out`, half a megabyte at a time. `dtype`: "bf16",
// "fp32" (fp32 master weights are rounded to nearest even), or "auto": each tensor of a Hugging Face folder as it is stored, a run in the
// precision that the config.json it started from names if that is bfloat16, otherwise fp32. A folder appears complete or not at all.
// Throws Error(bad_config) when `out` exists and is not an empty folder, Error(bad_data) for what cannot be read or written.
void export_model(const std::filesystem::path& folder, const std::filesystem::path& out, const std::string& dtype = "auto");

// A Hugging Face folder in the form that baleen writes: parameters under transformers' present names in the order of the model, values as
// they were, computed buffers and a tied head's copy left out. `tokenizer` replaces that of the folder ("": keep it).
void import_model(const std::filesystem::path& source, const std::string& tokenizer, const std::filesystem::path& out);

}  // namespace baleen
