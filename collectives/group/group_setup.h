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

// The arguments of make_group.
struct GroupRequest {
  const ProcessGroup& world;
  // Number of groups that were made in the world before.
  int64_t number = 0;
  std::vector<int> ranks;
  const NewGroupOptions& options;
  const ProcessGroupOptions& world_options;
  std::shared_ptr<store::Store> store;
  std::shared_ptr<void> world_state;
  std::function<absl::Status()> interrupted;
};

// As ProcessGroup::new_group, but returns a Status instead of throwing.
absl::StatusOr<std::shared_ptr<ProcessGroup>> make_group(GroupRequest request);

}  // namespace gradwire::collectives
