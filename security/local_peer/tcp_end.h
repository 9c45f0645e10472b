#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace gradwire::security {

// One end of a TCP connection. An IPv4 address is in its mapped form (::ffff:a.b.c.d), so the same address is
// equal in both families.
struct TcpEnd {
  // In network order.
  std::array<uint8_t, 16> address = {};
  uint16_t port = 0;

  friend bool operator==(const TcpEnd&, const TcpEnd&) = default;
  bool is_v4() const;
  // Whether the address is 127.0.0.0/8 or ::1.
  bool is_loopback() const;
  // "10.0.0.1:80", "[::1]:80".
  std::string to_string() const;
};

// nullopt unless it is an IPv4 or IPv6 address.
std::optional<TcpEnd> tcp_end(const sockaddr_storage& address);
// From the 4 bytes of an IPv4 address, in network order.
TcpEnd tcp_end_v4(const uint8_t* address, uint16_t port);

// A socket of this host that the kernel has found.
struct FoundSocket {
  // The states of a connection that both ends have agreed to (include/net/tcp_states.h of Linux).
  static constexpr uint8_t kEstablished = 1;
  static constexpr uint8_t kFinWait1 = 4;
  static constexpr uint8_t kFinWait2 = 5;
  static constexpr uint8_t kCloseWait = 8;
  // The server has not agreed yet, and a socket that waits for connections.
  static constexpr uint8_t kSynReceived = 3;
  static constexpr uint8_t kListen = 10;

  uint32_t user = 0;
  // 0 if no process has the socket open any more. The kernel then says user 0.
  uint64_t inode = 0;
  uint8_t state = 0;

  // Whether `user` is that of a process that has the socket open, as an end of a connection.
  bool has_user() const;
  // Whether it is the end of a server that has not accepted the connection yet. It belongs to the socket that
  // listens, and ends with that one.
  bool awaits_accept() const;
};

}  // namespace gradwire::security
