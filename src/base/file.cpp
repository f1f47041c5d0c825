#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/temporary_path.h"

namespace baleen {
void throw_file_error(std::string_view verb, const std::filesystem::path& path, int error) {
  std::string remedy = "check the path, and the disk that it is on";
  if (error == EACCES || error == EPERM || error == EROFS) remedy = "check the permissions of the file and its directory";
  if (error == ENOSPC || error == EDQUOT) remedy = "free some space or write to another disk";
  if (error == EISDIR) remedy = "name a file, not a folder";
  if (error == EFBIG) remedy = "raise the limit on the size of files (ulimit -f), or write to another file system";
  if (error == EMFILE || error == ENFILE) remedy = "raise the limit on open files (ulimit -n)";
  throw Error(ExitCode::bad_data, "cannot " + std::string(verb) + ": " + std::strerror(error), path.string(), remedy);
}

namespace {

struct stat regular_file(int descriptor, const std::filesystem::path& path) {
  struct stat status{};
  if (fstat(descriptor, &status) != 0) throw_file_error("read", path, errno);
  if (S_ISDIR(status.st_mode)) throw_file_error("read", path, EISDIR);
  if (!S_ISREG(status.st_mode))
    throw Error(ExitCode::bad_data, "cannot read: not a regular file", path.string(), "copy it to a file first");
  return status;
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::size_t limit) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw_file_error("read", path, errno);
  const auto status = regular_file(file.get(), path);
  if (static_cast<std::size_t>(status.st_size) > limit)
    throw Error(ExitCode::bad_data,
                "file of " + std::to_string(status.st_size) + " bytes is larger than the " + std::to_string(limit) + " allowed here",
                path.string());
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = ::read(file.get(), content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error("read", path, errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  content.resize(done);
  return content;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  TemporaryPath beside(path, TemporaryPath::Kind::file);
  FileWriter writer(beside.path());
  writer.write(content);
  writer.sync_and_close();
  beside.publish();
  sync_directory(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

void sync_directory(const std::filesystem::path& directory) {
  const Descriptor file(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0) throw_file_error("sync", directory, errno);
  if (::fsync(file.get()) != 0 && errno != EINVAL)
    throw_file_error("sync", directory, errno);  // EINVAL: a file system without directory sync
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw_file_error("read", path, errno);
  size_ = static_cast<std::size_t>(regular_file(file.get(), path).st_size);
  if (size_ == 0) return;
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) throw_file_error("map", path, errno);
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileReader::FileReader(const std::filesystem::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) throw_file_error("read", path, errno);
}

FileReader::~FileReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileReader::FileReader(FileReader&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void FileReader::read_at(std::size_t offset, void* out, std::size_t bytes) const {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error("read", path_, errno);
    if (got == 0)
      throw Error(ExitCode::bad_data,
                  "the file has become shorter while it was in use: it ends before byte " + std::to_string(offset + bytes), path_.string(),
                  "put it back as it was, and leave it alone while it is read");
    to += got;
    offset += static_cast<std::size_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

FileWriter::FileWriter(const std::filesystem::path& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_file_error("write", path, errno);
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileWriter::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(descriptor_, from, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_file_error("write", path_, errno);
    from += put;
    bytes -= static_cast<std::size_t>(put);
    written_ += static_cast<std::size_t>(put);
  }
}

void FileWriter::write_at(std::size_t offset, const void* data, std::size_t bytes) {
  BALEEN_CHECK(offset + bytes <= written_, "offset", offset, "bytes", bytes, "written", written_);
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(descriptor_, from, bytes, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_file_error("write", path_, errno);
    from += put;
    offset += static_cast<std::size_t>(put);
    bytes -= static_cast<std::size_t>(put);
  }
}

void FileWriter::sync_and_close() {
  const int descriptor = std::exchange(descriptor_, -1);
  const bool synced = ::fsync(descriptor) == 0 || errno == EINVAL;
  const int error = errno;
  if (::close(descriptor) != 0) throw_file_error("write", path_, errno);
  if (!synced) throw_file_error("write", path_, error);
}

void FileWriter::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && ::close(descriptor) != 0) throw_file_error("write", path_, errno);
}

void write_plain_file(const std::filesystem::path& path, std::string_view text) {
  FileWriter file(path);
  file.write(text);
  file.close();
}

}  // namespace baleen
