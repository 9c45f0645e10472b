#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::transport {

// The host in the header Host of a request, without the port, in small letters: "127.0.0.1", "[::1]", "ps".
std::string host_of_header(absl::string_view header);

// Whether `host` is an address, or localhost: then the client has not got here by a name that somebody else
// controls (DNS rebinding).
bool is_address_or_localhost(absl::string_view host);
// The same, but only for addresses that begin as those of the loopback interface do.
bool is_loopback_host(absl::string_view host);

}  // namespace gradwire::transport
