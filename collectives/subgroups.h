#pragma once

// Several groups in one call, and the numbers of ranks in groups, as in torch.distributed. `group`: nullptr
// is the world.
//
// The functions that make groups are called by every member of the group in which they are made, in the same
// order and with the same arguments. Errors, thrown as Error: InvalidArgument, before anything is sent, for
// lists that are invalid; the errors of ProcessGroup::new_groups.

#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/world.h"

namespace gradwire::collectives {

// The result of new_subgroups.
struct Subgroups {
  // The group of this rank. If no list has this rank: the handle of a group that does nothing (rank() == -1).
  Group own;
  // All groups, in the order of the lists. This rank is a member of at most one of them.
  std::vector<Group> all;
};

// Divides the members of `group` into groups of `group_size` ranks: the first `group_size` of them, and so
// on. The number of members must be a multiple of `group_size`.
Subgroups new_subgroups(int group_size, const Group& group = nullptr, const NewGroupOptions& options = {});

// Makes one group for each list of ranks of the world. A rank may be in one list at most.
Subgroups new_subgroups_by_enumeration(std::vector<std::vector<int>> lists,
                                       const NewGroupOptions& options = {}, const Group& group = nullptr);

// Makes one group for each list, and returns that of this rank; if no list has this rank, the handle of a
// group that does nothing. As in torch.distributed the lists have ranks of `parent`, not of the world: rank i
// is parent->ranks()[i]. A rank may be in one list at most.
Group split_group(const Group& parent, const std::vector<std::vector<int>>& split_ranks,
                  const NewGroupOptions& options = {});

// The rank in `group` of a rank of the world. Throws Error: InvalidArgument if it is not a member.
int get_group_rank(const Group& group, int world_rank);
// The rank in the world of a rank of `group`. Throws Error: InvalidArgument if there is no such rank.
int get_global_rank(const Group& group, int group_rank);
// The members' ranks in the world, ascending.
inline std::vector<int> get_process_group_ranks(const Group& group = nullptr) {
  return group_or_world(group)->ranks();
}

}  // namespace gradwire::collectives
