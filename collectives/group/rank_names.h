#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace gradwire::collectives {

// How messages name the ranks of a group: by their number in the group, and where that of the world is
// another, with it. `world_ranks`: the ranks of the world of the group's members, by their rank in the group.

// "rank 1", "rank 1 (rank 3 of the world)".
std::string name_rank(int rank, const std::vector<int>& world_ranks);

// An error that names ranks of the group, and says behind its message what they are in the world.
absl::Status explain_ranks(const absl::Status& status, const std::vector<int>& world_ranks);

}  // namespace gradwire::collectives
