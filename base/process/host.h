#pragma once

#include <string>

namespace gradwire {

// Identifies this host, as reported by the operating system.

// The host's name, for messages and for name lookup by other hosts; "localhost" if the system does not report
// one.
std::string host_name();

// The following ids contain only letters, digits and '-'.

// The id of the current boot: it changes each time the host starts. Empty if the system does not report it.
const std::string& boot_id();

// The id of the network namespace. Two processes with the same non-empty id see the same listeners, including
// loopback addresses and abstract Unix sockets. Containers usually have different ids. Empty if the system
// does not report it.
const std::string& network_id();

}  // namespace gradwire
