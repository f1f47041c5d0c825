// A descriptor handed to another process over a local socket (unix(7), SCM_RIGHTS), beside one byte.
#pragma once

#include <optional>

#include "base/descriptor.h"

namespace baleen {

struct ByteAndDescriptor {
  char byte = 0;
  Descriptor descriptor;  // not valid where none came
};

// Whether it was sent; `descriptor` may be -1: the byte alone. System calls only, so that a child of fork() may call it.
bool send_with_descriptor(int socket, char byte, int descriptor);
// Nothing when the other end has hung up. What comes is close-on-exec. `flags` as recvmsg has them.
std::optional<ByteAndDescriptor> receive_with_descriptor(int socket, int flags = 0);

}  // namespace baleen
