// Files: whole-file reads and writes with errors that name the path, atomic replacement, memory maps.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace baleen {

// The whole file as bytes. Throws Error(code bad_data) naming the path when it cannot be read or is larger than `limit` bytes.
std::string read_file(const std::filesystem::path& path, std::size_t limit = std::size_t{1} << 31);

// Throws Error(bad_data) "cannot VERB: …" for a system call's errno, with what to do about it.
[[noreturn]] void throw_file_error(std::string_view verb, const std::filesystem::path& path, int error);

// Writes beside, syncs, renames over and syncs the directory: after a crash the old or the new content is there, never a mixture, and
// after an error nothing is left beside. Of several writers at once the last one wins.
// Throws Error(bad_data) naming the path ("cannot write …: No space left on device").
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// fsync on a directory, so that a rename or creation in it survives a crash.
void sync_directory(const std::filesystem::path& directory);

// A read-only memory map of a whole file. Move-only.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A file that is read at offsets, for as long as training takes: a map of a file that somebody cuts short kills the process with SIGBUS.
// Move-only; reading from many threads at once is fine.
class FileReader {
 public:
  explicit FileReader(const std::filesystem::path& path);
  ~FileReader();
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;
  // Throws Error(bad_data) with the path where the file ends before `offset + bytes`.
  void read_at(std::size_t offset, void* out, std::size_t bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// A sequential writer that counts bytes, reports errors with the path, and syncs on close.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Overwrites bytes written before (a header whose counts are known at the end only); does not move the end.
  void write_at(std::size_t offset, const void* data, std::size_t bytes);
  std::size_t bytes_written() const { return written_; }
  // Closes; throws where the file system says only now that it did not take everything, as those over a network do. Nothing, when closed.
  void close();
  // Flushes to the disk and closes; throws when the disk did not take everything. The destructor closes without a promise.
  void sync_and_close();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::size_t written_ = 0;
};

// A whole file, closed with a look at what the file system says.
void write_plain_file(const std::filesystem::path& path, std::string_view text);

}  // namespace baleen
