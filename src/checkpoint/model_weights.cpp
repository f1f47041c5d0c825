#include "checkpoint/model_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace baleen::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr const char* head = "lm_head.weight";
constexpr const char* again = "download the model's folder again";
constexpr std::size_t index_limit = std::size_t{64} << 20;

// Buffers that older versions of transformers saved beside the parameters.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with("rotary_emb.inv_freq");
}

// "model.layers.0.…" without its first part; "" where it has only one.
std::string without_prefix(const std::string& name) {
  const std::size_t dot = name.find('.');
  const bool prefixed = name.starts_with("model.") || name.starts_with("transformer.");
  return prefixed ? name.substr(dot + 1) : "";
}

// The first few names of a list, for a message.
std::string some_names(std::vector<std::string> names) {
  for (std::string& name : names) name = printable(name);
  return some_of(names, 4);
}

}  // namespace

bool ModelWeights::present(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / single_file, ignored) || fs::exists(folder / index_file, ignored);
}

std::string ModelWeights::unread(const fs::path& folder) {
  constexpr std::array<std::string_view, 6> extensions{".safetensors", ".gguf", ".pt", ".pth", ".h5", ".msgpack"};
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("pytorch_model") || std::ranges::find(extensions, entry->path().extension().string()) != extensions.end())
      names.push_back(name);
  }
  std::ranges::sort(names);
  return some_names(names);
}

ModelWeights::ModelWeights(const fs::path& folder) : folder_(folder) {
  std::error_code ignored;
  if (fs::exists(folder / single_file, ignored)) {  // before an index, as in transformers
    add_all(open(single_file));
  } else if (fs::exists(folder / index_file, ignored)) {
    open_indexed(folder / index_file);
  } else {
    const bool pickled = fs::exists(folder / "pytorch_model.bin", ignored) || fs::exists(folder / "pytorch_model.bin.index.json", ignored);
    throw Error(ExitCode::bad_data, fmt::format("no weights: neither {} nor {} is here", single_file, index_file), folder.string(),
                pickled
                    ? "pytorch_model.bin is a pickle, which can run code when it is read: take the model's safetensors files, or save it "
                      "with save_pretrained of transformers"
                    : "give the folder of a model as Hugging Face has it");
  }
}

const SafetensorsFile& ModelWeights::open(const std::string& name) {
  std::unique_ptr<SafetensorsFile>& file = files_[name];
  if (file == nullptr) {
    file = std::make_unique<SafetensorsFile>(folder_ / name);
    readers_.emplace(file.get(), FileReader(folder_ / name));
  }
  return *file;
}

void ModelWeights::add_all(const SafetensorsFile& file) {
  for (const StoredTensor& tensor : file.tensors()) {
    const auto [position, inserted] = stored_.try_emplace(tensor.name, Place{&file, &tensor});
    if (!inserted)
      throw Error(ExitCode::bad_data,
                  fmt::format("tensor '{}' is also in {}", printable(tensor.name), position->second.file->path().filename().string()),
                  file.path().string(), again);
  }
}

void ModelWeights::open_indexed(const fs::path& index) {
  const auto parsed = parse_json(read_file(index, index_limit), index.string(), {}, again);
  const auto map = parsed.find("weight_map");
  if (map == parsed.end() || !map->is_object()) throw Error(ExitCode::bad_data, "no weight_map in the index", index.string(), again);
  std::vector<std::string> missing;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string())
      throw Error(ExitCode::bad_data, fmt::format("weight_map: '{}' names no file", printable(name)), index.string(), again);
    const auto file_name = file.get<std::string>();
    if (file_name.empty() || file_name.starts_with('.') || file_name.find('/') != std::string::npos)
      throw Error(ExitCode::bad_data, fmt::format("weight_map: '{}' is not a plain file name", printable(file_name)), index.string(),
                  again);
    if (!files_.contains(file_name)) add_all(open(file_name));
    if (files_[file_name]->find(name) == nullptr) missing.push_back(name + " in " + file_name);
  }
  if (!missing.empty())
    throw Error(ExitCode::bad_data, "the index names tensors that are not there: " + some_names(missing), index.string(), again);
}

void ModelWeights::match(std::span<const WantedTensor> wanted, bool tied) {
  matched_.clear();
  std::vector<std::string> missing, others, problems;
  std::set<std::string_view> used;
  for (const WantedTensor& tensor : wanted) {
    auto found = stored_.find(tensor.name);
    if (found == stored_.end()) found = stored_.find(without_prefix(tensor.name));
    if (found == stored_.end()) {
      missing.push_back(tensor.name);
      continue;
    }
    used.insert(found->first);
    const StoredTensor& held = *found->second.tensor;
    if (held.shape != tensor.shape)
      problems.push_back(fmt::format("{} has shape {} and config.json asks for {}", printable(held.name), format_shape(held.shape),
                                     format_shape(tensor.shape)));
    else if (!is_floating(held.type))
      problems.push_back(
          fmt::format("{} holds {}, no floating-point values (a quantised model?)", printable(held.name), stored_type_name(held.type)));
    matched_[tensor.name] = found->second;
  }
  for (const auto& [name, place] : stored_)
    if (!used.contains(name) && !is_buffer(name) && !(tied && name == head)) others.push_back(name);
  if (!problems.empty())
    throw Error(ExitCode::bad_data, "wrong tensors: " + some_names(problems), folder_.string(),
                "use the config.json that belongs to these weights");
  if (!missing.empty())
    throw Error(ExitCode::bad_data, fmt::format("missing tensors: {}", some_names(missing)), folder_.string(),
                "use the config.json that belongs to these weights, or " + std::string(again));
  if (!others.empty())
    throw Error(ExitCode::bad_data, fmt::format("tensors that the model does not have: {}", some_names(others)), folder_.string(),
                "use the config.json that belongs to these weights");
  if (const auto stored_head = stored_.find(head); tied && stored_head != stored_.end() && !used.contains(head)) {
    const auto embedding = std::ranges::find_if(
        matched_, [](const auto& entry) { return entry.first.ends_with("embed_tokens.weight") || entry.first.ends_with("wte.weight"); });
    if (embedding != matched_.end() && !same_bytes(stored_head->second, embedding->second))
      throw Error(ExitCode::bad_data,
                  fmt::format("{} is stored and is not {}, though config.json ties the two", head, printable(embedding->first)),
                  folder_.string(), "set \"tie_word_embeddings\": false in config.json");
  }
}

bool ModelWeights::same_bytes(const Place& a, const Place& b) const {
  if (a.tensor->type != b.tensor->type || a.tensor->shape != b.tensor->shape) return false;
  const std::size_t bytes = static_cast<std::size_t>(a.tensor->elements()) * stored_type_bytes(a.tensor->type);
  std::vector<std::byte> left(std::min(bytes, std::size_t{1} << 20)), right(left.size());
  for (std::size_t done = 0; done < bytes; done += left.size()) {
    const std::size_t count = std::min(left.size(), bytes - done);
    readers_.at(a.file).read_at(a.file->header().data_begin + a.tensor->begin + done, left.data(), count);
    readers_.at(b.file).read_at(b.file->header().data_begin + b.tensor->begin + done, right.data(), count);
    if (!std::equal(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count), right.begin())) return false;
  }
  return true;
}

const ModelWeights::Place& ModelWeights::place(const std::string& name) const {
  const auto found = matched_.find(name);
  BALEEN_CHECK(found != matched_.end(), "not matched", name);
  return found->second;
}

void ModelWeights::read(const Placement& wanted, float* out) const {
  BALEEN_CHECK(wanted.kind == StateKind::weight, wanted.name);
  const Place& from = place(wanted.name);
  const FileReader& file = readers_.at(from.file);
  const StoredType type = from.tensor->type;
  const std::size_t width = stored_type_bytes(type), begin = from.file->header().data_begin + from.tensor->begin;
  std::array<std::byte, std::size_t{64} << 10> buffer;  // small enough to stay in the cache between reading and converting
  const auto block = static_cast<std::int64_t>(buffer.size() / width);
  const Placement whole{wanted.name, StateKind::weight, wanted.shape, Box::whole(wanted.shape), 0, from.tensor->elements()};
  for_each_common_run(whole, wanted, [&](const Run& run) {
    if (type == StoredType::F32)
      return file.read_at(begin + static_cast<std::size_t>(run.source) * width, out + run.target,
                          static_cast<std::size_t>(run.count) * width);
    for (std::int64_t done = 0; done < run.count; done += block) {
      const std::int64_t count = std::min(block, run.count - done);
      const std::size_t offset = begin + static_cast<std::size_t>(run.source + done) * width,
                        bytes = static_cast<std::size_t>(count) * width;
      file.read_at(offset, buffer.data(), bytes);
      floats_from(type, buffer.data(), count, out + run.target + done);
    }
  });
}

ModelWeights::Stored ModelWeights::stored(const std::string& name) const {
  const Place& from = place(name);
  return {from.tensor->type, from.file->data(*from.tensor), &from.file->path(), from.file->header().data_begin + from.tensor->begin};
}

}  // namespace baleen::checkpoint
