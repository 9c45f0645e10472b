#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::transport {

// An IPv4 or IPv6 address with a port.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// "10.0.0.1:80" or "[2001:db8::1]:80"; an IPv4 address mapped into IPv6 as what it is.
std::string to_string(const SocketAddress& address);
// "host:port", with brackets around a host that is an IPv6 address.
std::string join_host_port(absl::string_view host, int port);

// The addresses to try, in order, for "host:port" or several of them with commas between. A host is a number
// or a name; a name is looked up here and now and may have several addresses. InvalidArgument for what is no
// address, Unavailable for a name that is not found.
absl::StatusOr<std::vector<SocketAddress>> resolve_addresses(absl::string_view address);

// What to bind a listening socket to: all interfaces for an empty host.
absl::StatusOr<std::vector<SocketAddress>> resolve_bind_addresses(const std::string& host, int port);

// The host that this process tells others to connect to when it listens on all interfaces. The first of:
// `configured`; the environment's GRADWIRE_HOST_ADDRESS; an address of the host's own name that an interface
// here has; the address which the route to other networks starts from; the first address of an interface that
// is up, IPv4 before IPv6; 127.0.0.1. Loopback addresses (other than the last) and link-local ones are left
// out: they mean nothing to others. All of them reach this process from this host, without a network too.
//
// One address and not a list of all: many hosts have the same private addresses on their bridges, so that a
// list could lead to the wrong process.
std::string advertised_host(const std::string& configured);

}  // namespace gradwire::transport
