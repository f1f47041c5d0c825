#include "data/loader.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "data/shuffle.h"

namespace baleen {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view validation_ending = ".val.bin";

std::uint64_t samples_in(const TokenFile& file, std::int64_t sequence_length) {
  return (file.size() - 1) / static_cast<std::uint64_t>(sequence_length);
}

}  // namespace

std::vector<fs::path> find_token_files(const std::string& pattern) {
  if (pattern.empty())
    throw Error(ExitCode::bad_config, "no token file was named", "", "give a path or a pattern such as data/train-*.bin");
  const fs::path path(pattern);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string name = path.filename().string();
  std::error_code error;
  if (fs::exists(path, error)) return {path};  // also a name that has a bracket of its own
  if (name.find_first_of("*?[") == std::string::npos)
    throw Error(ExitCode::bad_data, "no such token file", pattern, "check the path, or make the file with `baleen tokenize`");
  std::vector<fs::path> found;
  fs::directory_iterator entries(folder, error);
  if (error)
    throw Error(ExitCode::bad_data, "cannot list the folder of a pattern: " + error.message(), folder.string() + " for " + pattern,
                "check the path");
  for (; entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string candidate = entries->path().filename().string();
    if (fnmatch(name.c_str(), candidate.c_str(), FNM_PERIOD) != 0 || fs::is_directory(entries->path(), error)) continue;
    if (candidate.ends_with(validation_ending) && !name.ends_with(validation_ending)) continue;
    found.push_back(path.has_parent_path() ? folder / candidate : fs::path(candidate));
  }
  if (found.empty())
    throw Error(ExitCode::bad_data, "no file matches the pattern \"" + name + "\"",
                "folder " + fs::absolute(folder).lexically_normal().string(),
                "check the pattern, or make token files with `baleen tokenize`");
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return found;
}

TokenDataset::TokenDataset(const std::vector<fs::path>& files, const DatasetOptions& options) : options_(options) {
  BALEEN_CHECK(options.sequence_length > 0 && options.global_batch_size > 0 && options.vocabulary > 0, options.sequence_length,
               options.global_batch_size, options.vocabulary);
  BALEEN_CHECK(!files.empty(), "files", files.size());
  first_sample_.push_back(0);
  for (const fs::path& path : files) {
    files_.emplace_back(path);
    first_sample_.push_back(first_sample_.back() + samples_in(files_.back(), options.sequence_length));
  }
  if (samples() > 0) return;
  const auto longest =
      std::max_element(files_.begin(), files_.end(), [](const TokenFile& a, const TokenFile& b) { return a.size() < b.size(); });
  throw Error(ExitCode::bad_data,
              "not one sample: a sequence of " + std::to_string(options.sequence_length) + " needs " +
                  std::to_string(options.sequence_length + 1) + " tokens in one file, and " +
                  (files.size() == 1 ? "the file has " : "the longest has ") + std::to_string(longest->size()),
              longest->path().string(), "lower training.sequence_length or use more text");
}

std::uint64_t TokenDataset::tokens() const {
  return std::accumulate(files_.begin(), files_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const TokenFile& file) { return sum + file.size(); });
}

void TokenDataset::check_ids() const {
  const auto T = static_cast<std::uint64_t>(options_.sequence_length);
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (const std::uint64_t here = first_sample_[i + 1] - first_sample_[i]; here > 0)
      files_[i].check_ids(0, here * T + 1, options_.vocabulary);
}

std::uint64_t TokenDataset::sample_at(std::uint64_t position) const {
  const std::uint64_t epoch = position / samples(), within = position % samples();
  return options_.order == DataOrder::sequential ? within : Shuffle(samples(), options_.seed, epoch)(within);
}

void TokenDataset::copy_sample(std::uint64_t sample, std::int32_t* inputs, std::int32_t* targets) const {
  const auto after = std::upper_bound(first_sample_.begin(), first_sample_.end(), sample);
  const auto index = static_cast<std::size_t>(after - first_sample_.begin()) - 1;
  const auto T = static_cast<std::uint64_t>(options_.sequence_length);
  const std::uint64_t first = (sample - first_sample_[index]) * T;
  const std::span<std::int32_t> out(inputs, T);
  files_[index].read(first, out, options_.vocabulary);
  std::memcpy(targets, inputs + 1, (T - 1) * sizeof *inputs);
  files_[index].read(first + T, {targets + T - 1, 1}, options_.vocabulary);
}

void TokenDataset::fill(std::uint64_t step, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const {
  BALEEN_CHECK(first >= 0 && count >= 0 && first + count <= options_.global_batch_size, first, count, options_.global_batch_size);
  const std::uint64_t start = step * static_cast<std::uint64_t>(options_.global_batch_size) + static_cast<std::uint64_t>(first);
  std::optional<Shuffle> shuffle;  // of `epoch`; a batch may run from one epoch into the next
  std::uint64_t shuffled_epoch = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t position = start + static_cast<std::uint64_t>(i), epoch = position / samples();
    std::uint64_t sample = position % samples();
    if (options_.order == DataOrder::shuffled) {
      if (!shuffle || epoch != shuffled_epoch) shuffle.emplace(samples(), options_.seed, epoch);
      shuffled_epoch = epoch;
      sample = (*shuffle)(sample);
    }
    copy_sample(sample, inputs + i * options_.sequence_length, targets + i * options_.sequence_length);
  }
}

}  // namespace baleen
