#include "gradwire/tools/launch/rendezvous/messages.h"

#include <gtest/gtest.h>

#include <string>

namespace gradwire::rendezvous {
namespace {

Member member(const std::string& host, bool ready, bool done) {
  return {.id = host,
          .node = {.host = host, .address = "10.0.0.1", .roles = {{"trainer", 1}}},
          .ready = ready,
          .done = done};
}

std::string wait_of(const Record& record, int group_rank) {
  return describe_wait(record, group_rank, absl::Seconds(30)).text;
}

TEST(RendezvousMessages, WaitForTheEndOfARoundNamesTheHosts) {
  const Record record{
      .settings = {.min_nodes = 2, .max_nodes = 3},
      .phase = Phase::kJoining,
      .round = 1,
      .participants = {member("a", true, false), member("b", false, false), member("c", false, false)}};
  EXPECT_EQ(wait_of(record, 0), "waiting for the workers of the previous round to end on b, c");
}

TEST(RendezvousMessages, WaitsInARoundNameTheHosts) {
  Record record{.settings = {.min_nodes = 3, .max_nodes = 3},
                .phase = Phase::kRunning,
                .round = 2,
                .participants = {member("a", true, true), member("b", true, false), member("c", true, true)}};
  EXPECT_EQ(wait_of(record, 0), "waiting for the workers on b to end");
  EXPECT_EQ(wait_of(record, 1), "waiting for round 2 to begin: a prepares the workers' store");
  EXPECT_EQ(wait_of(record, -1), "waiting for room: 3 nodes are at work (a, b, c)");
  record.phase = Phase::kClosed;
  EXPECT_EQ(wait_of(record, 0), "waiting for the other nodes to learn that the job is over");
}

}  // namespace
}  // namespace gradwire::rendezvous
