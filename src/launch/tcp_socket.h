// The few calls of the socket interface that a rendezvous needs, with errors as text.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/descriptor.h"

namespace baleen {

struct SocketAddress {
  sockaddr_storage value{};
  socklen_t length = 0;
  bool loopback() const;
  std::string text() const;  // "10.0.0.1:29500"
};

// All addresses of a name or number; empty with `why` set when there is none.
bool is_number(const std::string& host);  // "10.0.0.1", "::1": nothing to look up
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, std::string& why);
// A listening, non-blocking socket; invalid with errno set when it cannot be had.
Descriptor listen_on(const SocketAddress& address);
// A connected, non-blocking socket; invalid with `why` set after a refusal or when `limit` has passed.
Descriptor connect_to(const SocketAddress& address, std::chrono::milliseconds limit, std::string& why);
// The two ends of a connection.
SocketAddress own_of(int connection);
SocketAddress peer_of(int connection);

}  // namespace baleen
