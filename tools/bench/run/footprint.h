#pragma once

#include <cstdint>

#include "gradwire/tools/bench/report/statistics.h"

namespace gradwire::bench {

// What this process holds of the machine.
struct Footprint {
  int64_t descriptors = 0;
  // Its own memory, and of memory that it shares with other processes its part of it: over all processes that
  // adds up to what the machine has given. Without pages of files, such as programs and libraries.
  double memory_kb = 0;
};

// Throws std::runtime_error where /proc does not tell.
Footprint footprint();

// descriptors_per_peer and memory_per_peer_kb: what contact with `peers` others has added to `before`.
Measurement growth_per_peer(const Footprint& before, int peers);

}  // namespace gradwire::bench
