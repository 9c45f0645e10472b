#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// The handle of a group for a rank that is not a member. rank() is -1. Its operations do nothing, and the
// first one logs a warning.
std::shared_ptr<ProcessGroup> make_non_member_group(std::string name, std::vector<int> ranks, Backend backend,
                                                    absl::Duration timeout);

}  // namespace gradwire::collectives
