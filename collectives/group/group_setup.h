#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// How the ranks of a world, or of a group in it, come together: they agree over the store on what they are
// about to make, each makes its end, and they agree on how that went.

// ProcessGroup::create with a Status.
absl::StatusOr<std::shared_ptr<ProcessGroup>> join_world(const ProcessGroupOptions& options);

struct GroupRequest {
  const ProcessGroup& world;
  // How many groups were made in the world before.
  int64_t number = 0;
  std::vector<int> ranks;
  const NewGroupOptions& options;
  const ProcessGroupOptions& world_options;
  std::shared_ptr<store::Store> store;
  std::shared_ptr<void> world_state;
  std::function<absl::Status()> interrupted;
};

// ProcessGroup::new_group with a Status.
absl::StatusOr<std::shared_ptr<ProcessGroup>> make_group(GroupRequest request);

}  // namespace gradwire::collectives
