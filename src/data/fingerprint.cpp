// What a checkpoint remembers of its data, and what to say when it has changed (declared in loader.h).
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/loader.h"

namespace baleen {
namespace {

// The header, the length and 64 blocks of 4 KiB from the first to the last: at most 64 pages are touched, whatever the size.
std::string hash_of(const TokenFile& file) {
  constexpr std::size_t blocks = 64, block_bytes = 4096;
  const auto bytes = file.file_bytes();
  StreamHash hash;
  const std::uint64_t size = bytes.size();
  hash.update(&size, sizeof size);
  if (bytes.size() <= blocks * block_bytes) {
    hash.update(bytes.data(), bytes.size());
  } else {
    for (std::size_t i = 0; i < blocks; ++i) hash.update(bytes.data() + (bytes.size() - block_bytes) * i / (blocks - 1), block_bytes);
  }
  return hash.hex();
}

constexpr const char* order_name(DataOrder order) {
  return order == DataOrder::shuffled ? "shuffled" : "sequential";
}

template <class Value>
void check_key(const char* key, Value saved, Value current) {
  if (saved == current) return;
  throw Error(ExitCode::bad_config,
              std::string("the checkpoint was made with ") + key + " = " + std::to_string(saved) + ", and the config has " +
                  std::to_string(current) + ": the data would go on at another place or in another order",
              key, "set it back, or start a new run from these weights");
}

}  // namespace

DataFingerprint TokenDataset::fingerprint() const {
  DataFingerprint print;
  for (const TokenFile& file : files_) print.files.push_back({file.path().filename().string(), file.size(), hash_of(file)});
  print.seed = options_.seed;
  print.sequence_length = options_.sequence_length;
  print.global_batch_size = options_.global_batch_size;
  print.order = options_.order;
  return print;
}

std::string DataFingerprint::to_json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const File& file : files) list.push_back({{"name", file.name}, {"tokens", file.tokens}, {"hash", file.hash}});
  nlohmann::json mixture = nlohmann::json::array();
  for (const Source& source : sources) mixture.push_back({{"files", source.files}, {"weight", source.weight}});
  return dump_json(nlohmann::json{{"files", list},
                                  {"sources", mixture},
                                  {"seed", seed},
                                  {"sequence_length", sequence_length},
                                  {"global_batch_size", global_batch_size},
                                  {"order", order_name(order)}});
}

DataFingerprint DataFingerprint::from_json(const std::string& text, const std::string& where) {
  try {
    const auto json = parse_json(text, where);
    DataFingerprint print;
    for (const auto& file : json.at("files"))
      print.files.push_back(
          {file.at("name").get<std::string>(), file.at("tokens").get<std::uint64_t>(), file.at("hash").get<std::string>()});
    if (json.contains("sources"))  // not in older checkpoints
      for (const auto& source : json["sources"])
        print.sources.push_back({source.at("files").get<std::size_t>(), source.at("weight").get<double>()});
    print.seed = json.at("seed").get<std::uint64_t>();
    print.sequence_length = json.at("sequence_length").get<std::int64_t>();
    print.global_batch_size = json.at("global_batch_size").get<std::int64_t>();
    const auto order = json.at("order").get<std::string>();
    if (order != "shuffled" && order != "sequential") throw Error(ExitCode::bad_data, "unknown data order \"" + order + "\"", where);
    print.order = order == "shuffled" ? DataOrder::shuffled : DataOrder::sequential;
    return print;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::bad_data, std::string("the record of the data is not readable: ") + error.what(), where,
                "use another checkpoint");
  }
}

void check_same_data(const DataFingerprint& saved, const DataFingerprint& current) {
  check_key("data.seed", saved.seed, current.seed);
  check_key("training.sequence_length", saved.sequence_length, current.sequence_length);
  check_key("training.global_batch_size", saved.global_batch_size, current.global_batch_size);
  constexpr const char* remedy = "give back the files the run began with, or start a new run from these weights";
  if (saved.sources != current.sources)
    throw Error(ExitCode::bad_config,
                "the checkpoint was made with another mixture: other data.weights, or other files under a pattern of data.train",
                "data.weights", remedy);
  if (saved.order != current.order)
    throw Error(ExitCode::bad_config,
                std::string("the checkpoint's data order was ") + order_name(saved.order) + " and is now " + order_name(current.order),
                "data", remedy);
  for (std::size_t i = 0; i < std::max(saved.files.size(), current.files.size()); ++i) {
    if (i >= current.files.size())
      throw Error(ExitCode::bad_data, "a token file of the checkpoint's run is no longer there", saved.files[i].name, remedy);
    if (i >= saved.files.size())
      throw Error(ExitCode::bad_data, "a token file was added since the checkpoint", current.files[i].name, remedy);
    const auto &before = saved.files[i], &now = current.files[i];
    if (before.name != now.name)
      throw Error(ExitCode::bad_data,
                  "token file " + std::to_string(i + 1) + " of the data was " + before.name + " when the checkpoint was made", now.name,
                  remedy);
    if (before.tokens != now.tokens)
      throw Error(
          ExitCode::bad_data,
          "the file had " + std::to_string(before.tokens) + " tokens when the checkpoint was made and has " + std::to_string(now.tokens),
          now.name, remedy);
    if (before.hash != now.hash)
      throw Error(ExitCode::bad_data,
                  "the file's content has changed since the checkpoint was made (its " + std::to_string(now.tokens) + " tokens are others)",
                  now.name, remedy);
  }
}

}  // namespace baleen
