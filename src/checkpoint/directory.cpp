#include "checkpoint/directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/reader.h"

namespace baleen::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view incomplete_suffix = ".incomplete", replaced_suffix = ".replaced", damaged_suffix = ".damaged",
                           removing_prefix = ".removing_";

[[noreturn]] void fail(std::string_view verb, const fs::path& path, int error) {
  throw Error(ExitCode::bad_data, fmt::format("cannot {}: {}", verb, std::strerror(error)), path.string(),
              "check the permissions and the free space of the checkpoints' folder");
}

void rename_directory(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("rename", from, errno);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail("remove", path, error.value());
}

// First out of sight under one rename, then deleted file by file.
void remove_checkpoint(const fs::path& directory) {
  const fs::path hidden = directory.parent_path() / (std::string(removing_prefix) + directory.filename().string());
  remove_tree(hidden);
  rename_directory(directory, hidden);
  sync_directory(directory.parent_path());
  remove_tree(hidden);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error, vanished;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->is_directory(vanished)) names.push_back(entry->path().filename().string());
  if (error && error != std::errc::no_such_file_or_directory) fail("list", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

bool present(const fs::path& path) {
  std::error_code error;
  const bool found = fs::exists(path, error);
  if (error) fail("look at", path, error.value());
  return found;
}

std::string_view without_suffix(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : std::string_view();
}

}  // namespace

fs::path checkpoints_folder(const fs::path& run) {
  return run / "checkpoints";
}

std::string step_name(std::int64_t step) {
  BALEEN_CHECK(step >= 0, step);
  return fmt::format("step_{:08}", step);
}

std::optional<std::int64_t> step_of_name(std::string_view name) {
  constexpr std::string_view prefix = "step_";
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t step = -1;
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || stop != name.data() + name.size() || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& run) {
  const fs::path folder = checkpoints_folder(run);
  const std::vector<std::string> names = names_in(folder);
  std::vector<CheckpointEntry> found;
  for (const std::string& name : names) {
    if (const auto step = step_of_name(name)) found.push_back({*step, folder / name});
    // The former step_N counts while the new one has not taken its name.
    const std::string_view former = without_suffix(name, replaced_suffix);
    if (const auto step = step_of_name(former); step && !std::binary_search(names.begin(), names.end(), std::string(former)))
      found.push_back({*step, folder / name});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

fs::path find_checkpoint(const fs::path& run, std::int64_t step) {
  for (const CheckpointEntry& entry : list_checkpoints(run))
    if (entry.step == step) return entry.directory;
  return checkpoints_folder(run) / step_name(step);
}

std::optional<fs::path> forbidden_file(const fs::path& checkpoint) {
  const auto forbidden = [](const fs::path& path, int mode) { return ::access(path.c_str(), mode) != 0 && errno == EACCES; };
  if (forbidden(checkpoint, R_OK | X_OK)) return checkpoint;
  std::error_code error;
  for (fs::directory_iterator entry(checkpoint, error), end; !error && entry != end; entry.increment(error))
    if (forbidden(entry->path(), R_OK)) return entry->path();
  return std::nullopt;
}

bool is_removed(const fs::path& directory) {
  return !present(directory);
}

LatestCheckpoint latest_checkpoint(const fs::path& run) {
  LatestCheckpoint latest;
  // Also again where none is listed: a listing can miss what is renamed meanwhile.
  bool again = true;
  for (int attempt = 0; attempt < removal_tries && again; ++attempt) {
    latest.warnings.clear();
    const auto found = list_checkpoints(run);
    again = found.empty();
    for (auto entry = found.rbegin(); entry != found.rend() && !latest.checkpoint; ++entry) {
      try {
        const CheckpointReader reader(entry->directory);
        if (reader.step() != entry->step)
          throw Error(ExitCode::bad_data, fmt::format("the manifest says step {}", reader.step()), entry->directory.string());
        latest.checkpoint = *entry;
      } catch (const Error& error) {
        if (error.code() != ExitCode::bad_data) throw;
        if (is_removed(entry->directory))
          again = true;
        else
          latest.warnings.push_back(
              fmt::format("checkpoint {} cannot be used and is passed over: {}", entry->directory.string(), error.what()));
      }
    }
    again = again && !latest.checkpoint;
  }
  return latest;
}

void set_aside_damaged(const CheckpointEntry& checkpoint) {
  const std::string name = step_name(checkpoint.step) + std::string(damaged_suffix);
  fs::path aside = checkpoint.directory.parent_path() / name;
  for (int more = 2; present(aside); ++more) aside.replace_filename(fmt::format("{}-{}", name, more));
  rename_directory(checkpoint.directory, aside);
  sync_directory(aside.parent_path());
}

void prune_checkpoints(const fs::path& run, int keep) {
  BALEEN_CHECK(keep >= 1, keep);
  auto found = list_checkpoints(run);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < found.size(); ++i) remove_checkpoint(found[i].directory);
}

void discard_checkpoints_after(const fs::path& run, std::int64_t step) {
  auto found = list_checkpoints(run);
  // From the newest down: after a kill, what is left is still one history.
  for (auto entry = found.rbegin(); entry != found.rend() && entry->step > step; ++entry) remove_checkpoint(entry->directory);
}

void clean_checkpoints_folder(const fs::path& run) {
  const fs::path folder = checkpoints_folder(run);
  for (const std::string& name : names_in(folder)) {
    const std::string_view former = without_suffix(name, replaced_suffix);
    if (step_of_name(without_suffix(name, incomplete_suffix)) || name.starts_with(removing_prefix)) {
      remove_tree(folder / name);
    } else if (step_of_name(former)) {
      if (present(folder / former))
        remove_checkpoint(folder / name);
      else
        rename_directory(folder / name, folder / former);
    }
  }
}

void publish_checkpoint(const fs::path& incomplete, Exchange exchange) {
  const fs::path folder = incomplete.parent_path();
  const std::string name(without_suffix(incomplete.filename().string(), incomplete_suffix));
  BALEEN_CHECK(step_of_name(name), incomplete.string());
  const fs::path final_name = folder / name;
  if (!present(final_name)) {
    rename_directory(incomplete, final_name);
    sync_directory(folder);
    return;
  }
  if (exchange == Exchange::where_possible) {
    if (::renameat2(AT_FDCWD, incomplete.c_str(), AT_FDCWD, final_name.c_str(), RENAME_EXCHANGE) == 0) {
      sync_directory(folder);
      remove_tree(incomplete);  // now the former checkpoint, under a name no reader looks at
      return;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) fail("rename", incomplete, errno);
  }
  const fs::path former = folder / (name + std::string(replaced_suffix));
  remove_tree(former);
  rename_directory(final_name, former);
  rename_directory(incomplete, final_name);
  sync_directory(folder);
  remove_checkpoint(former);
}

}  // namespace baleen::checkpoint
