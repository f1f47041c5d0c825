#include "data/sidecar.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace baleen {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view validation_ending = ".val.bin";
constexpr std::string_view token_ending = ".bin";
constexpr std::size_t max_sidecar_bytes = std::size_t{256} << 20;

Json to_json_object(const TokenCounts& counts) {
  return {{"bytes", counts.bytes}, {"documents", counts.documents}, {"tokens", counts.tokens}};
}

TokenCounts counts_from(const nlohmann::json& json) {
  return {json.at("bytes").get<std::uint64_t>(), json.at("documents").get<std::uint64_t>(), json.at("tokens").get<std::uint64_t>()};
}

bool is_validation(const fs::path& path) {
  return path.filename().string().ends_with(validation_ending);
}

// The path with another ending in place of .bin or .val.bin.
fs::path with_ending(const fs::path& path, std::string_view old_ending, std::string_view new_ending) {
  const std::string name = path.filename().string();
  return path.parent_path() / (name.substr(0, name.size() - old_ending.size()) + std::string(new_ending));
}

void require_training_name(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.ends_with(token_ending) || name.size() == token_ending.size() || is_validation(path))
    throw Error(ExitCode::bad_config, "the name of a token file to write must end in .bin, and not in .val.bin", path.string(),
                "name it FILE.bin; FILE.val.bin and FILE.json are written beside it");
}

// The sidecar of a token file whatever its name, if it is there.
std::optional<Sidecar> read_sidecar(const TokenFile& file) {
  const std::string name = file.path().filename().string();
  const bool validation = is_validation(file.path());
  if (!name.ends_with(token_ending)) return std::nullopt;
  const fs::path path = with_ending(file.path(), validation ? validation_ending : token_ending, ".json");
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  Sidecar sidecar = Sidecar::from_json(read_file(path, max_sidecar_bytes), path.string());
  const std::uint64_t expected = validation ? sidecar.validation.value_or(TokenCounts{}).tokens : sidecar.train.tokens;
  if (expected != file.size())
    throw Error(ExitCode::bad_data,
                "it describes a file of " + std::to_string(expected) + " tokens, and " + name + " has " + std::to_string(file.size()),
                path.string(), "tokenize the text again, or move away the .json that belongs to another file");
  return sidecar;
}

}  // namespace

std::string Sidecar::to_json() const {
  const Json json{{"format", "baleen-tokens"},
                  {"version", 1},
                  {"vocabulary", vocabulary},
                  {"end_of_document", end_of_document},
                  {"train", to_json_object(train)},
                  {"validation", validation ? to_json_object(*validation) : Json(nullptr)},
                  {"tokenizer", Json(parse_json(tokenizer, "tokenizer"))}};
  return dump_json(json, 2) + "\n";
}

Sidecar Sidecar::from_json(const std::string& text, const std::string& where) {
  constexpr const char* remedy = "tokenize the text again, or move the file away if it is not a sidecar of `baleen tokenize`";
  try {
    const auto json = parse_json(text, where, {}, remedy);
    if (json.at("format").get<std::string>() != "baleen-tokens" || json.at("version").get<int>() != 1)
      throw Error(ExitCode::bad_data, "not a sidecar of format baleen-tokens, version 1", where, remedy);
    Sidecar sidecar;
    sidecar.tokenizer = dump_json(json.at("tokenizer"));
    sidecar.vocabulary = json.at("vocabulary").get<std::int64_t>();
    sidecar.end_of_document = json.at("end_of_document").get<std::int64_t>();
    sidecar.train = counts_from(json.at("train"));
    if (!json.at("validation").is_null()) sidecar.validation = counts_from(json.at("validation"));
    return sidecar;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::bad_data, std::string("not a readable sidecar: ") + error.what(), where, remedy);
  }
}

fs::path validation_path_for(const fs::path& train) {
  require_training_name(train);
  return with_ending(train, token_ending, validation_ending);
}

fs::path sidecar_path_for(const fs::path& train) {
  require_training_name(train);
  return with_ending(train, token_ending, ".json");
}

std::optional<TokenFilesDescription> describe_token_files(std::span<const TokenFile> files) {
  std::optional<TokenFilesDescription> description;
  std::string tokenizer;
  fs::path described;  // the file whose sidecar gave the tokenizer
  TokenCounts sum;
  bool complete = true;
  for (const TokenFile& file : files) {
    const auto sidecar = read_sidecar(file);
    complete = complete && sidecar.has_value();
    if (!sidecar) continue;
    if (!description) {
      tokenizer = sidecar->tokenizer;
      described = file.path();
      description.emplace();
      description->tokenizer = tokenizer_from_json(tokenizer, "the sidecar of " + described.string());
    } else if (sidecar->tokenizer != tokenizer) {
      throw Error(ExitCode::bad_data, "made with another tokenizer than " + described.string(), file.path().string(),
                  "tokenize all files with one tokenizer");
    }
    const TokenCounts counts = is_validation(file.path()) ? sidecar->validation.value_or(TokenCounts{}) : sidecar->train;
    sum = {sum.bytes + counts.bytes, sum.documents + counts.documents, sum.tokens + counts.tokens};
  }
  if (description && complete) description->counts = sum;
  return description;
}

}  // namespace baleen
