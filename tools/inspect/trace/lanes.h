#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gradwire::inspect {

// Distributes periods {begin, end} over lanes, so that the periods of a lane do not overlap, and few lanes
// are used. Returns the lane of each period, from 0. A period that is in no other one's way keeps to low
// lanes.
std::vector<std::size_t> assign_lanes(const std::vector<std::pair<int64_t, int64_t>>& periods);

}  // namespace gradwire::inspect
