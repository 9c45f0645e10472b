#pragma once

// The world of this process: what init_process_group() made and the free functions act on.

#include <memory>

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// A handle of a group; nullptr stands for the world.
using Group = std::shared_ptr<ProcessGroup>;

// Makes the world of this process. Returns when all ranks have joined. Throws as ProcessGroup::create, and
// FailedPrecondition when there is one already.
Group init_process_group(const ProcessGroupOptions& options = {});
// Whether this process has a world.
bool is_initialized();
// nullptr: the world, and with it every group; without one nothing happens. Idempotent. A process that exits
// without it is seen to leave by its peers.
void destroy_process_group(const Group& group = nullptr);
// The world. Throws FailedPrecondition when there is none.
Group world();

// `group`, or the world where that is nullptr.
inline Group group_or_world(const Group& group) { return group != nullptr ? group : world(); }

// Whether this process is that rank of the world in this group.
inline bool is_rank(const ProcessGroup& group, int world_rank) {
  return group.rank() >= 0 && group.ranks()[static_cast<std::size_t>(group.rank())] == world_rank;
}

}  // namespace gradwire::collectives
