#include "support/reserved_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

namespace baleen::testing {

ReservedPort::ReservedPort() : holder_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const int one = 1;
  setsockopt(holder_.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const bool had = bind(holder_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                   getsockname(holder_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (!had) throw std::system_error(errno, std::generic_category(), "no free port");
  number_ = ntohs(address.sin_port);
}

}  // namespace baleen::testing
