#pragma once

#include <string>

namespace gradwire::collectives {

// Where worlds can meet that nobody else has: init methods with their address.
std::string tcp_method();
std::string multicast_method();
std::string file_method();

// As a launcher sets it for env://, on this host.
void set_environment(int port, int rank, int world_size);

}  // namespace gradwire::collectives
