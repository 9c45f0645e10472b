#pragma once

#include <cstdint>

#include "collectives/group_backend.h"

namespace gradwire::collectives {

// Runs every operation of a group on every dtype and some sizes, and compares with what plain loops over all ranks' inputs
// (which each rank can make) give. Throws std::runtime_error that says what differs.
void check_operations(GroupBackend& group, int rank, int size);

}  // namespace gradwire::collectives
