#include "base/temporary_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/file.h"

namespace baleen {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t random_digits = 8;

std::string random_name() {
  std::string digits(random_digits + 1, '\0');
  std::snprintf(digits.data(), digits.size(), "%08x", static_cast<unsigned>(std::random_device()()));
  digits.pop_back();
  return digits;
}

bool is_random_name(std::string_view text) {
  return text.size() == random_digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// For a lock: over NFS one on a file needs the right to write, and on a folder there is none.
int open_to_lock(const fs::path& path, TemporaryPath::Kind kind) {
  return ::open(path.c_str(),
                (kind == TemporaryPath::Kind::folder ? O_RDONLY | O_DIRECTORY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

}  // namespace

bool names_open_file(const fs::path& path, int descriptor) {
  struct stat named{}, open{};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(descriptor, &open) == 0 && named.st_dev == open.st_dev &&
         named.st_ino == open.st_ino;
}

TemporaryPath::TemporaryPath(const fs::path& target, Kind kind) : target_(target), prefix_(target), kind_(kind) {
  if (kind == Kind::folder) {
    prefix_ = fs::absolute(target).lexically_normal();
    if (!prefix_.has_filename()) prefix_ = prefix_.parent_path();  // "out/"
    std::error_code error;
    fs::create_directories(prefix_.parent_path(), error);
    if (error) throw_file_error("create", prefix_, error.value());
  }
  prefix_ += kind == Kind::folder ? ".incomplete-" : ".tmp-";
  remove_leftovers();
  while (!try_create()) {
  }
}

// False when the name is taken, or another process took the new file for a leftover before it had its lock.
bool TemporaryPath::try_create() {
  path_ = prefix_;
  path_ += random_name();
  if (kind_ == Kind::folder) {
    if (::mkdir(path_.c_str(), 0777) != 0) {
      if (errno == EEXIST) return false;
      throw_file_error("create", path_, errno);
    }
    descriptor_ = open_to_lock(path_, kind_);
  } else {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor_ < 0) {
      if (errno == EEXIST) return false;
      throw_file_error("write", path_, errno);
    }
  }
  if (descriptor_ < 0) return errno != ENOENT;  // a folder that cannot be opened stays without a lock
  while (::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
  if (names_open_file(path_, descriptor_)) return true;
  ::close(descriptor_);
  descriptor_ = -1;
  return false;
}

TemporaryPath::~TemporaryPath() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (descriptor_ >= 0) ::close(descriptor_);
}

void TemporaryPath::publish() {
  if (::rename(path_.c_str(), target_.c_str()) != 0) {
    if (kind_ == Kind::folder && (errno == ENOTEMPTY || errno == EEXIST))
      throw Error(ExitCode::bad_config, "the output is there already: another process has written it meanwhile", target_.string(),
                  "give --out another folder, or delete this one");
    throw_file_error(kind_ == Kind::folder ? "create" : "write", target_, errno);
  }
  path_.clear();
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void TemporaryPath::remove_leftovers() const {
  const fs::path folder = prefix_.has_parent_path() ? prefix_.parent_path() : fs::path(".");
  const std::string start = prefix_.filename().string();
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(start) || !is_random_name(std::string_view(name).substr(start.size()))) continue;
    const int descriptor = open_to_lock(entry->path(), kind_);
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && names_open_file(entry->path(), descriptor)) fs::remove_all(entry->path(), ignored);
    ::close(descriptor);
  }
}

}  // namespace baleen
