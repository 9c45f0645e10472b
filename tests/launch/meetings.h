#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {

// The line that tests/launch/meeting_worker writes when it has formed a group with the others of its round.
struct Met {
  int rank = 0;
  int world_size = 0;
  int restarts = 0;
  int round = 0;
  int arrivals = 0;  // Number of workers in the round's store, up to this one.
  int port = 0;      // Port of the store.
  pid_t pid = 0;
};

// Waits until the worker of each of `nodes` (one per node) has formed a group with the others, in a round
// that is `wanted`. Skips earlier rounds, some of which may be incomplete. Expects that all workers report
// the same round, and that no other worker used its store.
std::vector<Met> next_meeting(const std::vector<LaunchProcess*>& nodes,
                              const std::function<bool(const Met&)>& wanted);

// Ends the workers with exit code 0, and expects the same exit code of their launchers.
void end_well(const std::vector<LaunchProcess*>& nodes, const std::vector<Met>& met);

}  // namespace gradwire::tests
