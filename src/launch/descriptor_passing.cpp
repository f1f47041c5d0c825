#include "launch/descriptor_passing.h"

#include <sys/socket.h>

#include <cstring>

namespace baleen {
namespace {

struct Message {
  explicit Message(char value) : byte(value) {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
  }
  void take_control() {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }

  char byte;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

}  // namespace

bool send_with_descriptor(int socket, char byte, int descriptor) {
  Message message(byte);
  if (descriptor >= 0) {
    message.take_control();
    cmsghdr* const carried = CMSG_FIRSTHDR(&message.header);
    carried->cmsg_level = SOL_SOCKET;
    carried->cmsg_type = SCM_RIGHTS;
    carried->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(carried), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &message.header, MSG_NOSIGNAL) == 1;
}

std::optional<ByteAndDescriptor> receive_with_descriptor(int socket, int flags) {
  Message message(0);
  message.take_control();
  if (recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC | flags) != 1) return std::nullopt;
  ByteAndDescriptor out{message.byte, Descriptor()};
  const cmsghdr* const carried = CMSG_FIRSTHDR(&message.header);
  if (carried != nullptr && carried->cmsg_type == SCM_RIGHTS && carried->cmsg_len == CMSG_LEN(sizeof(int))) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(carried), sizeof descriptor);
    out.descriptor = Descriptor(descriptor);
  }
  return out;
}

}  // namespace baleen
