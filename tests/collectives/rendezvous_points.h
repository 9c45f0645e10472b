#pragma once

#include <string>

namespace gradwire::collectives {

// Init methods with an address that no other test uses.
std::string tcp_method();
std::string multicast_method();
std::string file_method();

// Sets the environment variables that a launcher sets for env://, for this host.
void set_environment(int port, int rank, int world_size);

}  // namespace gradwire::collectives
