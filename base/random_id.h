#pragma once

#include <cstdint>

namespace gradwire {

// 64 random bits from the operating system, never 0: incarnations, and names that must not collide.
uint64_t random_id();

}  // namespace gradwire
