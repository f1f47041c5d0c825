#include "launch/memory_file.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "launch/descriptor_passing.h"

namespace baleen {
namespace {

// In a tmpfs that is mounted nowhere and goes with its last file. -1 where this process may not mount. System calls only: a child of fork()
// calls it.
int open_in_own_tmpfs() {
  const int context = fsopen("tmpfs", FSOPEN_CLOEXEC);
  if (context < 0) return -1;
  int file = -1;
  if (fsconfig(context, FSCONFIG_SET_STRING, "huge", "advise", 0) == 0 &&
      fsconfig(context, FSCONFIG_SET_STRING, "size", "0", 0) == 0 &&  // no limit
      fsconfig(context, FSCONFIG_SET_STRING, "mode", "0700", 0) == 0 && fsconfig(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0) {
    const int mount = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (mount >= 0) {
      file = openat(mount, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
      close(mount);
    }
  }
  close(context);
  return file;
}

bool write_file(const char* path, const char* text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const auto length = static_cast<ssize_t>(std::strlen(text));
  const bool written = write(file, text, static_cast<std::size_t>(length)) == length;
  close(file);
  return written;
}

// The same, by a child that is its own user namespace's root.
Descriptor open_in_user_namespace() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0) return {};
  const Descriptor ours(ends[0]), theirs(ends[1]);
  char users[32], groups[32];
  std::snprintf(users, sizeof users, "0 %u 1", geteuid());
  std::snprintf(groups, sizeof groups, "0 %u 1", getegid());
  const pid_t child = fork();
  if (child < 0) return {};
  if (child == 0) {
    const bool root = unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && write_file("/proc/self/uid_map", users) &&
                      write_file("/proc/self/setgroups", "deny") && write_file("/proc/self/gid_map", groups);
    const int file = root ? open_in_own_tmpfs() : -1;
    _exit(file >= 0 && send_with_descriptor(theirs.get(), 0, file) ? 0 : 1);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return {};
  auto received = receive_with_descriptor(ours.get(), MSG_DONTWAIT);
  return received ? std::move(received->descriptor) : Descriptor();
}

}  // namespace

Descriptor make_memory_file(std::size_t bytes) {
  Descriptor file(open_in_own_tmpfs());
  if (!file.valid()) file = open_in_user_namespace();
  if (!file.valid()) file = Descriptor(memfd_create("baleen", MFD_CLOEXEC));
  if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    throw Error(ExitCode::out_of_memory, std::string("cannot make shared memory for the ranks: ") + std::strerror(errno),
                std::to_string(bytes) + " bytes",
                errno == EFBIG ? "raise the limit on the size of files (ulimit -f)" : "use fewer ranks, or a machine with more memory");
  return file;
}

}  // namespace baleen
