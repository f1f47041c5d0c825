#include "launch/tcp_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace baleen {

bool SocketAddress::loopback() const {
  if (value.ss_family == AF_INET) return (ntohl(reinterpret_cast<const sockaddr_in*>(&value)->sin_addr.s_addr) >> 24) == 127;
  if (value.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&value)->sin6_addr);
  return false;
}

std::string SocketAddress::text() const {
  std::array<char, 80> host{};
  std::array<char, 16> port{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&value), length, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return std::string(host.data()) + ":" + port.data();
}

bool is_number(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); status != 0) {
    why = gai_strerror(status);
    return {};
  }
  std::vector<SocketAddress> out;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    std::memcpy(&address.value, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    out.push_back(address);
  }
  freeaddrinfo(found);
  return out;
}

Descriptor listen_on(const SocketAddress& address) {
  Descriptor listener(socket(address.value.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return listener;
  const int one = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.value), address.length) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    const int error = errno;
    listener = Descriptor();
    errno = error;
  }
  return listener;
}

Descriptor connect_to(const SocketAddress& address, std::chrono::milliseconds limit, std::string& why) {
  Descriptor connection(socket(address.value.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto failed = [&](int error) {
    why = std::strerror(error);
    return Descriptor();
  };
  if (!connection.valid()) return failed(errno);
  const int one = 1;
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address.value), address.length) != 0) {
    if (errno != EINPROGRESS) return failed(errno);
    pollfd entry{connection.get(), POLLOUT, 0};
    if (poll(&entry, 1, static_cast<int>(limit.count())) <= 0) return failed(ETIMEDOUT);
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return failed(error);
  }
  // Where nobody listens yet, a socket that happens to be given the port it calls on this machine connects to itself.
  if (own_of(connection.get()).text() == peer_of(connection.get()).text()) {
    const linger reset{1, 0};  // or the port would be taken for another minute
    setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    return failed(ECONNREFUSED);
  }
  return connection;
}

SocketAddress own_of(int connection) {
  SocketAddress out;
  out.length = sizeof out.value;
  if (getsockname(connection, reinterpret_cast<sockaddr*>(&out.value), &out.length) != 0) out.length = 0;
  return out;
}

SocketAddress peer_of(int connection) {
  SocketAddress out;
  out.length = sizeof out.value;
  if (getpeername(connection, reinterpret_cast<sockaddr*>(&out.value), &out.length) != 0) out.length = 0;
  return out;
}

}  // namespace baleen
