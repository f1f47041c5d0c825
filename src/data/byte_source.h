// The bytes of a file from front to back, unpacked where it is a gzip or zstd archive.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace baleen {

class ByteSource {
 public:
  // Throws Error(bad_data) naming the path where it cannot be opened, or is a known binary format other than these two.
  explicit ByteSource(const std::filesystem::path& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  // Appends at most `bytes` bytes to `out`; fewer only at the end. Returns how many. Throws Error(bad_data) where the file cannot be read
  // or the archive is damaged, truncated or followed by something else.
  std::size_t read(std::string& out, std::size_t bytes);

  bool compressed() const { return inflate_ != nullptr || zstd_ != nullptr; }
  std::uint64_t consumed() const { return consumed_; }  // bytes of the file used so far
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Inflate;
  struct Zstd;
  std::size_t refill();  // the next block of the file into block_; how many bytes
  std::size_t read_plain(char* out, std::size_t bytes);
  std::size_t read_gzip(char* out, std::size_t bytes);
  std::size_t read_zstd(char* out, std::size_t bytes);
  bool next_member();  // after an archive's end: whether another follows

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::string block_;  // read from the file, used up to used_
  std::size_t used_ = 0;
  std::uint64_t consumed_ = 0;
  std::unique_ptr<Inflate> inflate_;
  std::unique_ptr<Zstd> zstd_;
};

}  // namespace baleen
