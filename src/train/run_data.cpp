#include "train/run_data.h"

#include <malloc.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "data/mixture.h"
#include "data/sidecar.h"
#include "data/tokenizer/tokenizer_folder.h"
#include "train/initial_weights.h"

namespace baleen {
namespace {

std::vector<TokenFile> open_files(const std::vector<std::filesystem::path>& paths) {
  std::vector<TokenFile> files;
  for (const auto& path : paths) files.emplace_back(path);
  return files;
}

// The files of a pattern; none where there is no pattern, or where nothing matches and nobody needs them.
std::vector<std::filesystem::path> find_files(const std::string& pattern, bool needed) {
  if (pattern.empty()) return {};
  try {
    return find_token_files(pattern);
  } catch (const Error&) {
    if (needed) throw;
    return {};
  }
}

// Of the folder that the model is from. Data without a sidecar are trained on without it too, when it is of a kind that is not read.
std::shared_ptr<const Tokenizer> model_tokenizer(const std::filesystem::path& folder) {
  try {
    return load_folder_tokenizer(folder);
  } catch (const Error& error) {
    log::warning("the run carries no tokenizer: {} ({})", error.what_is_wrong(), error.where());
    return nullptr;
  }
}

std::unique_ptr<TokenDataset> open_dataset(const std::vector<std::filesystem::path>& paths, const Config& config, std::int64_t global_batch,
                                           DataOrder order, std::int64_t tokenizer_vocabulary) {
  auto dataset = std::make_unique<TokenDataset>(
      paths, DatasetOptions{config.training.sequence_length, global_batch, config.model.vocab_size, order, config.data.seed});
  // Else an id that the model does not have would end the run when its turn comes.
  if (tokenizer_vocabulary > config.model.vocab_size) dataset->check_ids();
  return dataset;
}

std::unique_ptr<Dataset> open_training_data(const std::vector<std::vector<std::filesystem::path>>& sources, const Config& config,
                                            std::int64_t tokenizer_vocabulary) {
  std::vector<std::unique_ptr<TokenDataset>> datasets;
  for (const auto& files : sources)
    datasets.push_back(open_dataset(files, config, config.training.global_batch_size, DataOrder::shuffled, tokenizer_vocabulary));
  if (datasets.size() == 1) return std::move(datasets.front());
  return std::make_unique<MixedDataset>(std::move(datasets), config.data.weights);
}

}  // namespace

RunData resolve_run(Config& config, int world, const std::string& launcher) {
  RunData data;
  const bool needs_data = config.training.steps > 0;
  if (needs_data && config.data.train.empty())
    throw Error(ExitCode::bad_config, "data.train: missing", config.source,
                "name token files, such as data.train = \"corpus.bin\"; `baleen tokenize` makes them");
  std::vector<std::vector<std::filesystem::path>> sources;
  std::vector<std::filesystem::path> train;  // of all sources
  for (const std::string& pattern : config.data.train) {
    sources.push_back(find_files(pattern, needs_data));
    train.insert(train.end(), sources.back().begin(), sources.back().end());
  }
  const std::vector<std::filesystem::path> validation = find_files(config.data.validation, needs_data);

  std::shared_ptr<const Tokenizer> tokenizer;
  if (!config.data.tokenizer.empty()) tokenizer = load_tokenizer(config.data.tokenizer);
  if (tokenizer == nullptr && !train.empty())
    if (const auto description = describe_token_files(open_files(train))) tokenizer = description->tokenizer;
  if (tokenizer == nullptr && std::filesystem::is_directory(config.model_path)) tokenizer = model_tokenizer(config.model_path);
  if (tokenizer == nullptr && train.empty() && config.model.vocab_size == 0)
    for (const std::string& pattern : config.data.train) find_files(pattern, true);  // says what is not there
  if (tokenizer != nullptr) data.tokenizer_json = tokenizer->to_json();
  const std::int64_t vocabulary = data.vocabulary = tokenizer == nullptr ? 0 : tokenizer->vocabulary_size();
  tokenizer.reset();
  malloc_trim(0);  // a vocabulary takes tens of megabytes while it is parsed, which a rank would keep to its end

  resolve_model(config, vocabulary);
  resolve_layout(config, world, launcher);
  if (begins_with_weights(config)) open_model_weights(config.model_path, config.model);  // what is wrong with them is said once
  const bool complete = std::none_of(sources.begin(), sources.end(), [](const auto& files) { return files.empty(); });
  if (!sources.empty() && complete) data.train = open_training_data(sources, config, vocabulary);
  if (!validation.empty()) {
    data.validation = open_dataset(validation, config, 1, DataOrder::sequential, vocabulary);
    const std::vector<TokenFile> files = open_files(validation);
    const auto description = describe_token_files(files);
    if (description && description->counts && description->counts->tokens > 0)
      data.validation_bytes_per_token = static_cast<double>(description->counts->bytes) / static_cast<double>(description->counts->tokens);
  }
  return data;
}

}  // namespace baleen
