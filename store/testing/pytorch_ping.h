#pragma once

#include <string>

namespace gradwire::store {

// For tests: connects to the store at a numeric IPv4 address as a client of PyTorch's TCPStore does, and asks
// for a sign of life. Returns "served", "refused" (the server has closed the connection), "not connected", or
// "no answer" after 60 s.
std::string ping_as_pytorch(const std::string& host, int port);

}  // namespace gradwire::store
