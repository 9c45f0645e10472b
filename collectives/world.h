#pragma once

// The world of this process: the group that init_process_group() made. The free functions act on it.

#include <memory>

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// A handle of a group; nullptr stands for the world.
using Group = std::shared_ptr<ProcessGroup>;

// Makes the world of this process. Returns when all ranks have joined. Throws the errors of
// ProcessGroup::create, and FailedPrecondition if this process already has a world.
Group init_process_group(const ProcessGroupOptions& options = {});
// Whether this process has a world.
bool is_initialized();
// Destroys `group`. nullptr: destroys the world and every group made in it; does nothing if this process has
// no world. Idempotent. If a process exits without this call, its peers still see that it has left.
void destroy_process_group(const Group& group = nullptr);
// The world. Throws FailedPrecondition if this process has none.
Group world();

// `group`, or the world if `group` is nullptr.
inline Group group_or_world(const Group& group) { return group != nullptr ? group : world(); }

// Whether this process is a member of `group` and has the rank `world_rank` in the world.
inline bool is_rank(const ProcessGroup& group, int world_rank) {
  return group.rank() >= 0 && group.ranks()[static_cast<std::size_t>(group.rank())] == world_rank;
}

}  // namespace gradwire::collectives
