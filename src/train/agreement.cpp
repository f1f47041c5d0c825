#include "train/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace baleen {
namespace {

struct Fact {
  std::string name, value;
};

// Machines may have other cores, and their own copies of files, whose contents count.
bool may_differ(std::string_view key) {
  constexpr std::array<std::string_view, 5> keys{"training.threads", "model.path", "data.train", "data.validation", "data.tokenizer"};
  return std::ranges::find(keys, key) != keys.end();
}

// A line `name\tvalue` each, in the same order on every rank that agrees.
std::string facts_of(const Config& config, const RunData& data, const std::string& run, const std::string& resume) {
  std::string facts, section;
  std::istringstream lines(config_toml(config));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.find(']') - 1);
    const std::size_t equals = line.find(" = ");
    if (equals == std::string::npos) continue;
    const std::string key = section + "." + line.substr(0, equals);
    if (!may_differ(key)) facts += fmt::format("{}\t{}\n", key, line.substr(equals + 3));
  }
  facts += fmt::format("--out\t{}\n--resume\t{}\n", run, resume);
  const auto add_files = [&](const char* key, const Dataset* dataset) {
    if (dataset == nullptr) return;
    for (const DataFingerprint::File& file : dataset->fingerprint().files)
      facts += fmt::format("the data of {}\t{} of {} tokens, checksum {}\n", key, file.name, file.tokens, file.hash);
  };
  add_files("data.train", data.train.get());
  add_files("data.validation", data.validation.get());
  return facts;
}

std::vector<Fact> split_facts(const std::string& text) {
  std::vector<Fact> facts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    facts.push_back({line.substr(0, tab), tab == std::string::npos ? "" : line.substr(tab + 1)});
  }
  return facts;
}

}  // namespace

void require_agreement(World& world, const Config& config, const RunData& data, const std::string& run, const std::string& resume) {
  if (world.size() == 1) return;
  std::vector<int> all;
  for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
  const auto everyone = world.create_communicator(all, "agreement");
  const std::string mine = facts_of(config, data, run, resume);
  std::string first = mine;
  std::uint64_t size = first.size();
  everyone->broadcast(&size, sizeof size, DType::u8, 0).wait();
  first.resize(size);
  everyone->broadcast(first.data(), first.size(), DType::u8, 0).wait();
  const auto differ = [](const Fact& a, const Fact& b) { return a.name != b.name || a.value != b.value; };
  const std::vector<Fact> theirs = split_facts(first), own = split_facts(mine);
  std::string problem, where;
  for (std::size_t i = 0; i < std::max(theirs.size(), own.size()) && problem.empty(); ++i) {
    const Fact none{"", "nothing more"};
    const Fact &a = i < theirs.size() ? theirs[i] : none, &b = i < own.size() ? own[i] : none;
    if (!differ(a, b)) continue;
    where = b.name.empty() ? a.name : b.name;
    problem =
        a.name == b.name
            ? fmt::format("the ranks do not agree on {}: rank {} has {}, and rank 0 {}", where, world.rank(), b.value, a.value)
            : fmt::format("the ranks do not agree: rank {} has {} {}, and rank 0 {} {}", world.rank(), b.name, b.value, a.name, a.value);
  }
  // Everybody learns of it before the first one leaves.
  std::int32_t apart = problem.empty() ? 0 : 1;
  everyone->all_reduce(&apart, &apart, 1, DType::i32, ReduceOp::max).wait();
  if (!problem.empty()) throw Error(ExitCode::bad_config, problem, where, "give all ranks the same command, configuration file and data");
  if (apart != 0)
    throw Error(ExitCode::bad_config, "the ranks do not agree on the configuration or the data", config.source,
                "see the message of a rank that differs from rank 0");
}

}  // namespace baleen
