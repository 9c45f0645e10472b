#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire {

// For tests: a socket of an attacker, which sends what it likes. A read ends after a minute at the latest.
// Not thread-safe.
class RawSocket {
 public:
  explicit RawSocket(Descriptor socket) : socket_(std::move(socket)) {
    const timeval timeout = {60, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    const int one = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  }

  static sockaddr_in loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  static RawSocket connect(int port) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(port);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      std::abort();
    return RawSocket(std::move(socket));
  }

  int get() const { return socket_.get(); }
  // Returns whether the kernel has taken all bytes.
  bool send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  void end_writes() { ::shutdown(socket_.get(), SHUT_WR); }

  // Returns `size` bytes; fewer if the other end closes the socket before.
  std::string receive(std::size_t size) {
    std::string bytes(size, '\0');
    const ssize_t got = ::recv(socket_.get(), bytes.data(), size, MSG_WAITALL);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }
  struct Rest {
    std::string bytes;
    // Whether the other end has closed the socket.
    bool closed = false;
  };
  Rest receive_until_closed() {
    Rest rest;
    char part[4096];
    ssize_t got = 0;
    while ((got = ::recv(socket_.get(), part, sizeof(part), 0)) > 0)
      rest.bytes.append(part, static_cast<std::size_t>(got));
    rest.closed = got == 0 || errno == ECONNRESET;
    return rest;
  }

 private:
  Descriptor socket_;
};

}  // namespace gradwire
