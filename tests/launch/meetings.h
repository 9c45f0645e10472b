#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {

// What tests/launch/meeting_worker says when it has met the others of its round.
struct Met {
  int rank = 0;
  int world_size = 0;
  int restarts = 0;
  int round = 0;
  int comers = 0;  // in the round's store, up to itself
  int port = 0;    // the store's
  pid_t pid = 0;
};

// The next time that the one worker of each of `nodes` has met the others, in a round that is `wanted`; of
// rounds before it some may have been broken off. Expects that all say the same of the round, and that in its
// store there was nobody else.
std::vector<Met> next_meeting(const std::vector<LaunchProcess*>& nodes,
                              const std::function<bool(const Met&)>& wanted);

// Ends the workers well, and expects of their launchers that they do so too.
void end_well(const std::vector<LaunchProcess*>& nodes, const std::vector<Met>& met);

}  // namespace gradwire::tests
