#pragma once

#include <cstddef>
#include <string>

namespace gradwire::security {

// Random bytes of the operating system for nonces and tokens. `count`: at most 256.
std::string random_bytes(std::size_t count);

}  // namespace gradwire::security
