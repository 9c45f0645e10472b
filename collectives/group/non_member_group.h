#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// The handle of a group of which this rank is no member: rank() is -1; its operations leave everything alone,
// and the first one warns.
std::shared_ptr<ProcessGroup> make_non_member_group(std::string name, std::vector<int> ranks, Backend backend,
                                                    absl::Duration timeout);

}  // namespace gradwire::collectives
