#pragma once

#include <sys/socket.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
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

// Formats an address as "10.0.0.1:80" or "[2001:db8::1]:80". An IPv4-mapped IPv6 address is written as IPv4.
std::string to_string(const SocketAddress& address);
// Returns the host of an address as to_string() writes it, without brackets.
std::string host_to_string(const SocketAddress& address);
// Whether the address belongs to the loopback interface.
bool is_loopback(const SocketAddress& address);
// Returns "host:port", with brackets around an IPv6 host.
std::string join_host_port(absl::string_view host, int port);

// Returns `address`, one of the loopback interface, with the network namespace in which it means something:
// "127.0.0.1:80@NETWORK". `network` as network_id() (base/process/host.h); without one `address` is returned.
std::string in_network(absl::string_view address, absl::string_view network);
// Returns an address or a list of them as it is shown in messages: without networks.
std::string without_network(absl::string_view address);

// The host and the port of an address.
struct HostAddress {
  std::string host;
  int port = 0;
  // The address of a numeric host; nullopt: the host is a name, which must be looked up.
  std::optional<SocketAddress> numeric;
};

// Parses "host:port" or a list of these separated by commas. Looks up no name, and never blocks. An address
// in_network() of another host or container is left out: here it would lead to another process.
//
// InvalidArgument for a malformed address; FailedPrecondition if all addresses are loopback addresses of
// other networks, with the reason and the remedy.
absl::StatusOr<std::vector<HostAddress>> parse_addresses(absl::string_view address);

// Returns the addresses of a host name, with any port; at least one. Unavailable if the name is not found.
using HostLookup = std::function<absl::StatusOr<std::vector<SocketAddress>>(const std::string& host)>;
// A HostLookup that asks the system. It may block for a long time.
absl::StatusOr<std::vector<SocketAddress>> look_up_host(const std::string& host);

// Returns the addresses to try, in order. A name may have several. A name that is not found does not matter
// while there is another address; without one its error is returned.
absl::StatusOr<std::vector<SocketAddress>> resolve(
    const std::vector<HostAddress>& addresses,
    absl::FunctionRef<absl::StatusOr<std::vector<SocketAddress>>(const std::string& host)> look_up);

// Parses the address or the list, and looks up its names inside this call. Errors as above.
absl::StatusOr<std::vector<SocketAddress>> resolve_addresses(absl::string_view address);

// Returns the addresses to bind a listening socket to, one of which is enough; all interfaces for an empty
// host.
absl::StatusOr<std::vector<SocketAddress>> resolve_bind_addresses(const std::string& host, int port);
// Returns the addresses of the loopback interface, IPv4 and IPv6.
std::vector<SocketAddress> loopback_addresses(int port);

// Returns the host to which other processes should connect if this process listens on all interfaces. It is
// the first that exists of: `configured`; the environment variable GRADWIRE_HOST_ADDRESS; an address of the
// host's own name that a local interface has; the source address of the route to other networks; the first
// address of an interface that is up, IPv4 before IPv6; 127.0.0.1. Loopback addresses (except the last) and
// link-local ones are skipped, because other hosts cannot use them. All of these addresses reach this process
// from this host, also without a network.
//
// It returns one address and not a list of all: many hosts have the same private addresses on their bridges,
// so a list could lead to the wrong process.
std::string advertised_host(const std::string& configured);

}  // namespace gradwire::transport
