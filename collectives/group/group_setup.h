#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// How the ranks of a world, or of a group in it, make the group together:
//   1. They agree over the store that they all ask for the same group.
//   2. Each rank makes its end of the backend.
//   3. They agree that no rank failed in step 2.

// As ProcessGroup::create, but returns a Status instead of throwing.
absl::StatusOr<std::shared_ptr<ProcessGroup>> join_world(const ProcessGroupOptions& options);

// The arguments of make_groups.
struct GroupRequest {
  // The group in which the new groups are made.
  const ProcessGroup& parent;
  // Number of such calls before this one. Every rank has the same, whatever lists it gave.
  int64_t number = 0;
  // The members of each new group.
  std::vector<std::vector<int>> lists;
  const NewGroupOptions& options;
  const ProcessGroupOptions& parent_options;
  // The store of `parent`.
  std::shared_ptr<store::Store> store;
  std::shared_ptr<void> world_state;
  std::function<absl::Status()> interrupted;
};

// As ProcessGroup::new_groups, but returns a Status instead of throwing. An empty list stands for all
// members.
absl::StatusOr<std::vector<std::shared_ptr<ProcessGroup>>> make_groups(GroupRequest request);

}  // namespace gradwire::collectives
