#pragma once

#include <cstdint>

#include "gradwire/tools/bench/report/statistics.h"

namespace gradwire::bench {

// The resources that this process uses.
struct Footprint {
  int64_t descriptors = 0;
  // Private memory plus a proportional part of the memory that is shared with other processes, in KiB. The
  // sum over all processes is the memory in use. Does not include pages of files, such as programs and
  // libraries.
  double memory_kb = 0;
};

// Measures this process. Throws std::runtime_error if /proc lacks the data.
Footprint footprint();

// Returns the figures descriptors_per_peer and memory_per_peer_kb: the growth since `before`, divided by the
// number of `peers` that this process has connected to.
Measurement growth_per_peer(const Footprint& before, int peers);

}  // namespace gradwire::bench
