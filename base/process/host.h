#pragma once

#include <string>

namespace gradwire {

// What tells this host from others, as the system says it.

// Its own name, for people and for others of its network to look up; "localhost" when the system does not
// say.
std::string host_name();

// The following have letters, digits and '-' only.

// Another one each time that the host is started; empty when the system does not say.
const std::string& boot_id();

// Names the network in which an address here means what it says: two processes with the same one, not empty,
// see the same listeners, loopback's and abstract Unix sockets among them. Containers differ in it. Empty
// when the system does not say.
const std::string& network_id();

}  // namespace gradwire
