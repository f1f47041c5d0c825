// baleen inspect
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/describe.h"
#include "checkpoint/manifest.h"
#include "cli/commands.h"
#include "data/foreign_file.h"
#include "data/token_file.h"

namespace baleen::cli {
namespace {

using nlohmann::json;

json describe_tokens(const std::filesystem::path& path) {
  const TokenFile file(path);
  const TokenFileSummary summary = summarise(file);
  return {{"kind", "tokens"},
          {"path", path.string()},
          {"format", token_format_name(summary.format)},
          {"tokens", summary.tokens},
          {"bytes_per_token", summary.bytes_per_token},
          {"max_id", summary.max_id}};
}

json describe(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return checkpoint::describe_checkpoint(path);
  if (path.filename() == checkpoint::manifest_file_name)
    return checkpoint::describe_checkpoint(path.parent_path().empty() ? "." : path.parent_path());
  if (path.extension() == ".bin") return describe_tokens(path);
  return checkpoint::describe_safetensors(path);
}

std::string shape_text(const json& shape) {
  std::string text = "[";
  for (const json& extent : shape) text += fmt::format("{}{}", text.size() > 1 ? ", " : "", extent.get<std::int64_t>());
  return text + "]";
}

void print(const json& content) {
  for (const auto& [key, value] : content.items())
    if (!value.is_structured()) fmt::print("{}: {}\n", key, value.is_string() ? value.get<std::string>() : dump_json_lossy(value));
  if (content.contains("metadata"))
    for (const auto& [key, value] : content["metadata"].items()) fmt::print("metadata {}: {}\n", key, value.get<std::string>());
  if (content.contains("tensors"))
    for (const json& tensor : content["tensors"])
      fmt::print("  {:<6} {:<20} {}\n", tensor["dtype"].get<std::string>(), shape_text(tensor["shape"]), tensor["name"].get<std::string>());
  if (content.contains("files"))
    for (const json& file : content["files"])
      fmt::print("  {:>14} bytes  {}  {}\n", file["bytes"].get<std::uint64_t>(), file["checksum"].get<std::string>(),
                 file["name"].get<std::string>());
  if (content.contains("parameters"))
    for (const json& parameter : content["parameters"])
      fmt::print("  {:<20} {}\n", shape_text(parameter["shape"]), parameter["name"].get<std::string>());
}

}  // namespace

int run(const InspectArguments& arguments) {
  const json content = describe(arguments.file);
  if (arguments.json)
    fmt::print("{}\n", dump_json_lossy(content, 2));
  else
    print(content);
  return 0;
}

}  // namespace baleen::cli
