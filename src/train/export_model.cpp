#include "train/export_model.h"

#include <map>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/temporary_path.h"
#include "checkpoint/model_export.h"
#include "data/tokenizer/tokenizer_folder.h"
#include "model/family.h"
#include "train/model_folder.h"

namespace baleen {
namespace {

namespace fs = std::filesystem;
using checkpoint::ExportTensor;
using checkpoint::StoredType;

void require_new(const fs::path& out) {
  std::error_code error;
  if (fs::exists(out, error) && !(fs::is_directory(out, error) && fs::is_empty(out, error)))
    throw Error(ExitCode::bad_config, "the output is there already", out.string(), "give --out another folder, or delete this one");
}

std::vector<ExportTensor> tensors_of(const ModelConfig& config) {
  std::vector<ExportTensor> tensors;
  for (const UnitDescription& unit : model_units(config))
    for (const ParameterDescription& parameter : unit.parameters) tensors.push_back({parameter.name, parameter.shape, StoredType::F32});
  return tensors;
}

// A folder's tensors as they are stored. Read into a buffer, not from the maps: mapping every page costs more than copying it.
void copy_weights(const checkpoint::ModelWeights& weights, std::vector<ExportTensor> tensors, const fs::path& out) {
  for (ExportTensor& tensor : tensors) tensor.type = weights.stored(tensor.name).type;
  std::map<fs::path, FileReader> files;
  std::vector<std::byte> buffer;
  checkpoint::write_model_weights(out, tensors, [&](std::size_t index, std::int64_t begin, std::int64_t end) -> std::span<const std::byte> {
    const checkpoint::ModelWeights::Stored stored = weights.stored(tensors[index].name);
    const FileReader& file = files.try_emplace(*stored.path, *stored.path).first->second;
    const std::size_t width = checkpoint::stored_type_bytes(stored.type);
    buffer.resize(static_cast<std::size_t>(end - begin) * width);
    file.read_at(stored.offset + static_cast<std::size_t>(begin) * width, buffer.data(), buffer.size());
    return buffer;
  });
}

void convert_weights(ModelFolder& folder, std::vector<ExportTensor> tensors, StoredType type, const fs::path& out) {
  for (ExportTensor& tensor : tensors) tensor.type = type;
  std::vector<float> values;
  std::vector<BFloat16> rounded;
  checkpoint::write_model_weights(out, tensors, [&](std::size_t index, std::int64_t begin, std::int64_t end) -> std::span<const std::byte> {
    const auto& [name, shape, ignored] = tensors[index];
    values.resize(static_cast<std::size_t>(end - begin));
    const checkpoint::Placement wanted{name, checkpoint::StateKind::weight, shape, checkpoint::Box::whole(shape), begin, end};
    if (folder.checkpoint() != nullptr)
      folder.checkpoint()->read(wanted, values.data());
    else
      folder.weights()->read(wanted, values.data());
    if (type == StoredType::F32) return std::as_bytes(std::span(values));
    rounded.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) rounded[i] = to_bfloat16(values[i]);
    return std::as_bytes(std::span(rounded));
  });
}

// config.json's name for the precision of all tensors: the widest.
std::string dtype_of(const checkpoint::ModelWeights& weights, const std::vector<ExportTensor>& tensors) {
  const std::map<StoredType, std::pair<int, const char*>> names{{StoredType::F16, {0, "float16"}},
                                                                {StoredType::BF16, {1, "bfloat16"}},
                                                                {StoredType::F32, {2, "float32"}},
                                                                {StoredType::F64, {3, "float64"}}};
  std::pair<int, const char*> widest{0, "float16"};
  for (const ExportTensor& tensor : tensors) widest = std::max(widest, names.at(weights.stored(tensor.name).type));
  return widest.second;
}

void write_folder(ModelFolder& model, const fs::path& out, const std::string& dtype,
                  const std::map<std::string, std::string>& tokenizer_files) {
  require_new(out);
  TemporaryPath folder(out, TemporaryPath::Kind::folder);
  const auto write = [&](const std::string& file, std::string_view content) { write_plain_file(folder.path() / file, content); };
  const std::vector<ExportTensor> tensors = tensors_of(model.config());
  std::string name = dtype == "bf16" ? "bfloat16" : "float32";
  if (dtype == "auto" && model.weights() != nullptr) {
    copy_weights(*model.weights(), tensors, folder.path());
    name = dtype_of(*model.weights(), tensors);
  } else {
    if (dtype == "auto" && carried_dtype(model.config()) == "bfloat16") name = "bfloat16";
    convert_weights(model, tensors, name == "bfloat16" ? StoredType::BF16 : StoredType::F32, folder.path());
  }
  const ConfigFiles files = config_files(model.config(), name);
  write("config.json", files.config);
  write("generation_config.json", files.generation);
  for (const auto& [file, content] : tokenizer_files) write(file, content);
  folder.publish();
}

}  // namespace

void export_model(const fs::path& folder, const fs::path& out, const std::string& dtype) {
  ModelFolder model(folder);
  std::map<std::string, std::string> files;
  if (model.weights() != nullptr)
    files = folder_tokenizer_files(folder);
  else if (model.tokenizer() != nullptr)
    files = tokenizer_files(*model.tokenizer());
  write_folder(model, out, dtype, files);
}

void import_model(const fs::path& source, const std::string& tokenizer, const fs::path& out) {
  ModelFolder model(source);
  const std::shared_ptr<const Tokenizer> named = tokenizer.empty() ? nullptr : load_tokenizer(tokenizer);
  const std::shared_ptr<const Tokenizer>& used = named != nullptr ? named : model.tokenizer();
  if (used != nullptr && used->vocabulary_size() > model.config().vocab_size)
    log::warning("the tokenizer has {} ids, the model {}: a text with one of those beyond cannot be fed to it", used->vocabulary_size(),
                 model.config().vocab_size);
  write_folder(model, out, "auto", named == nullptr ? folder_tokenizer_files(source) : tokenizer_files(*named));
}

}  // namespace baleen
