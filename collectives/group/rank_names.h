#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace gradwire::collectives {

// Messages name a rank of a group by its number in the group. If its number in the world differs, they give
// that number too. `world_ranks`: the members' ranks in the world, by their rank in the group.

// "rank 1" or "rank 1 (rank 3 of the world)".
std::string name_rank(int rank, const std::vector<int>& world_ranks);

// Appends the members' ranks in the world to the message of an error that names ranks of the group, if the
// numbers differ.
absl::Status explain_ranks(const absl::Status& status, const std::vector<int>& world_ranks);

}  // namespace gradwire::collectives
