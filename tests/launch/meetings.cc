#include "gradwire/tests/launch/meetings.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <set>

namespace gradwire::tests {

std::vector<Met> next_meeting(const std::vector<LaunchProcess*>& nodes,
                              const std::function<bool(const Met&)>& wanted) {
  std::vector<Met> met;
  std::set<int> ranks, arrivals;
  for (LaunchProcess* node : nodes) {
    Met each;
    do {
      const std::vector<std::string> events = node->events(1);
      if (events.empty()) {
        ADD_FAILURE() << node->err();
        return met;
      }
      EXPECT_EQ(std::sscanf(events[0].c_str(), "%d %d %d %d %d %d %d", &each.rank, &each.world_size,
                            &each.restarts, &each.round, &each.arrivals, &each.port, &each.pid),
                7)
          << events[0];
    } while (!wanted(each));
    met.push_back(each);
    ranks.insert(each.rank);
    arrivals.insert(each.arrivals);
    EXPECT_EQ(each.world_size, static_cast<int>(nodes.size()));
    EXPECT_EQ(each.restarts, met[0].restarts);
    EXPECT_EQ(each.round, met[0].round);
    EXPECT_EQ(each.port, met[0].port);
  }
  EXPECT_EQ(ranks.size(), nodes.size());
  EXPECT_EQ(arrivals.size(), nodes.size());
  EXPECT_EQ(*arrivals.rbegin(), static_cast<int>(nodes.size()));
  return met;
}

void end_well(const std::vector<LaunchProcess*>& nodes, const std::vector<Met>& met) {
  for (const Met& each : met) kill(each.pid, SIGUSR1);
  for (LaunchProcess* node : nodes) EXPECT_EQ(node->wait(), 0) << node->err();
}

}  // namespace gradwire::tests
