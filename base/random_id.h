#pragma once

#include <cstdint>

namespace gradwire {

// Returns 64 random bits from the operating system, never 0. It is used for incarnations and for names that
// must not collide.
uint64_t random_id();

}  // namespace gradwire
