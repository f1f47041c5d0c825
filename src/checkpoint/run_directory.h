// A run directory belongs to one job at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace baleen::checkpoint {

// Creates the directory if needed and holds RUN/.lock (flock: the kernel lets go of it however the process ends) until destroyed.
// The file stays: deleting it would let two jobs hold locks on two files of one name. Move-only is not needed, so it does not move.
class RunDirectoryLock {
 public:
  // Throws Error(bad_config) naming the process that holds it, Error(bad_data) when the directory cannot be created or written.
  explicit RunDirectoryLock(const std::filesystem::path& run);
  ~RunDirectoryLock();
  RunDirectoryLock(const RunDirectoryLock&) = delete;
  RunDirectoryLock& operator=(const RunDirectoryLock&) = delete;

  // False on a file system without locks, where the job runs unprotected; worth a warning.
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

// Writes, syncs and removes a small file, so that a full or read-only disk ends the job before its first step and not at its first save.
// `needed_bytes`: what the first checkpoint will take; that much must be free. Throws Error(bad_data) naming the path.
void probe_writable(const std::filesystem::path& directory, std::uint64_t needed_bytes = 0);

}  // namespace baleen::checkpoint
