#pragma once

#include <string>

namespace gradwire::security {

// The two addresses of a connection as one end sees them, in a form that both ends write alike:
// "10.0.0.1:80" or "[2001:db8::1]:80". An IPv4-mapped IPv6 address is written as IPv4, because one end may
// use an IPv6 socket and the other one an IPv4 socket. The scope of a link-local address is left out, because
// it is a number of the host. Empty for sockets without such addresses (Unix sockets).
struct SocketAddresses {
  std::string own;
  std::string peer;
};

// The addresses of a connected socket; empty ones if the connection has ended.
SocketAddresses socket_addresses(int socket);

}  // namespace gradwire::security
