#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::store {

// A host (a name, an IPv4 address or an IPv6 address without brackets) and a port.
struct Endpoint {
  std::string host;
  int port = 0;
};

// "host:port", with an IPv6 address in brackets.
std::string to_string(const Endpoint& endpoint);
// Parses the output of to_string(), with a port from 0 to 65535. InvalidArgument, which names `text`, for
// other text.
absl::StatusOr<Endpoint> parse_endpoint(absl::string_view text);
// InvalidArgument unless the host is plausible and the port is in [lowest_port, 65535].
absl::Status check_endpoint(const Endpoint& endpoint, int lowest_port);

bool is_ipv4(absl::string_view host);
// The address may have a zone ("fe80::1%eth0").
bool is_ipv6(absl::string_view host);
// Whether the host, as written, means this machine alone: localhost, 127.x.x.x, ::1.
bool is_loopback(absl::string_view host);

// Whether `host`, a name or an address, is this machine: an address of one of its interfaces or of all of
// them (0.0.0.0), or a name that resolves to one. Unavailable if the name cannot be resolved.
absl::StatusOr<bool> is_this_machine(const std::string& host);

}  // namespace gradwire::store
