// What is written beside its name and takes it at the end, by one rename.
#pragma once

#include <filesystem>

namespace baleen {

// A new file TARGET.tmp-1a2b3c4d or folder TARGET.incomplete-1a2b3c4d, which no other process writes, however many write the same target.
// It is locked (flock) until it has its name or is gone. What has such a name and no lock was left by a writer that was killed, and the
// next writer of the target removes it; on a file system without locks it stays.
class TemporaryPath {
 public:
  enum class Kind { file, folder };
  // Throws Error(bad_data) when it cannot be made.
  TemporaryPath(const std::filesystem::path& target, Kind kind);
  // Removes it with what it holds, unless it was published.
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Gives it the target's name, in place of a file or an empty folder that has it. Throws Error(bad_data), Error(bad_config) where a
  // folder of this name has something in it: another process was first.
  void publish();

 private:
  bool try_create();
  void remove_leftovers() const;

  std::filesystem::path target_, prefix_, path_;  // the prefix: all but the digits
  Kind kind_;
  int descriptor_ = -1;
};

// Whether `path` still is the file that `descriptor` has open, so that a lock on the latter is one on the former.
bool names_open_file(const std::filesystem::path& path, int descriptor);

}  // namespace baleen
