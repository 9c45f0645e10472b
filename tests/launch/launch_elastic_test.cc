// Tests of elastic jobs: several launchers on one machine act as nodes that join and leave.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

class LaunchElastic : public ::testing::Test {
 protected:
  // Starts a node. Its worker writes the size of the job and the number of restarts, and runs until it is
  // ended; SIGUSR1 makes it exit with 0.
  std::unique_ptr<LaunchProcess> node(const std::string& nnodes, std::vector<std::string> options = {}) {
    options.insert(options.begin(),
                   {absl::StrCat("--nnodes=", nnodes), absl::StrCat("--rdzv_endpoint=127.0.0.1:", port_),
                    "--rdzv_conf=last_call_timeout=0.2", "--rdzv_id=job"});
    return std::make_unique<LaunchProcess>(
        with_script(std::move(options),
                    "trap 'exit 0' USR1; echo \"$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $$\" >&9; "
                    "while :; do sleep 0.02; done"));
  }

  // For tests in which a node is lost: it is lost after three such intervals. They are long enough that a
  // loaded machine does not lose a node by mistake.
  static constexpr char kShortKeepAlive[] = "--rdzv_conf=keep_alive_interval=1";

  struct Event {
    std::string job;  // World size and number of restarts.
    pid_t worker = 0;
  };
  static Event next(LaunchProcess& node) {
    const std::string line = node.events(1).at(0);
    const size_t space = line.rfind(' ');
    return {line.substr(0, space), std::stoi(line.substr(space + 1))};
  }
  static void end_well(const std::vector<LaunchProcess*>& nodes, const std::vector<Event>& events) {
    for (const Event& each : events) kill(each.worker, SIGUSR1);
    for (LaunchProcess* each : nodes) EXPECT_EQ(each->wait(), 0) << each->err();
  }

  const int port_ = free_port();
};

TEST_F(LaunchElastic, NewNodeJoinsWithoutARestart) {
  auto first = node("1:2");
  EXPECT_EQ(next(*first).job, "1 0");
  auto second = node("1:2");
  const std::vector<Event> events = {next(*first), next(*second)};
  EXPECT_EQ(events[0].job, "2 0");
  EXPECT_EQ(events[1].job, "2 0");
  end_well({first.get(), second.get()}, events);
}

TEST_F(LaunchElastic, LostNodeRestartsTheOthers) {
  auto first = node("1:3", {"--max_restarts=1", kShortKeepAlive});
  EXPECT_EQ(next(*first).job, "1 0");
  auto second = node("1:3", {"--max_restarts=1", kShortKeepAlive});
  EXPECT_EQ(next(*first).job, "2 0");
  EXPECT_EQ(next(*second).job, "2 0");
  second->send(SIGKILL);
  EXPECT_EQ(second->wait(), -SIGKILL);
  const std::vector<Event> events = {next(*first)};
  EXPECT_EQ(events[0].job, "1 1");
  end_well({first.get()}, events);
  // The other node must print the reason, because the lost node cannot.
  EXPECT_TRUE(absl::StrContains(first->err(), "; the previous round ended: node ")) << first->err();
}

TEST_F(LaunchElastic, LostNodeWithoutRestartsEndsTheJob) {
  auto first = node("1:3", {kShortKeepAlive});
  EXPECT_EQ(next(*first).job, "1 0");
  auto second = node("1:3", {kShortKeepAlive});
  EXPECT_EQ(next(*first).job, "2 0");
  EXPECT_EQ(next(*second).job, "2 0");
  second->send(SIGKILL);
  EXPECT_EQ(first->wait(), 1) << first->err();
  EXPECT_TRUE(absl::StrContains(first->err(), "was lost")) << first->err();
}

TEST_F(LaunchElastic, StoppedNodeDoesNotEndTheJob) {
  auto first = node("1:2");
  EXPECT_EQ(next(*first).job, "1 0");
  auto second = node("1:2");
  EXPECT_EQ(next(*first).job, "2 0");
  EXPECT_EQ(next(*second).job, "2 0");
  second->send(SIGTERM);
  EXPECT_EQ(second->wait(), 128 + SIGTERM) << second->err();
  const std::vector<Event> events = {next(*first)};
  EXPECT_EQ(events[0].job, "1 0");
  end_well({first.get()}, events);
}

TEST_F(LaunchElastic, ExtraNodeWaitsForRoom) {
  auto first = node("1:2");
  EXPECT_EQ(next(*first).job, "1 0");
  auto second = node("1:2");
  EXPECT_EQ(next(*first).job, "2 0");
  EXPECT_EQ(next(*second).job, "2 0");
  auto third = node("1:2");
  second->send(SIGTERM);
  EXPECT_EQ(second->wait(), 128 + SIGTERM) << second->err();
  // The third node joins, at once or after a round of the first alone.
  Event mine = next(*first);
  if (mine.job == "1 0") mine = next(*first);
  const std::vector<Event> events = {mine, next(*third)};
  EXPECT_EQ(events[0].job, "2 0");
  EXPECT_EQ(events[1].job, "2 0");
  end_well({first.get(), third.get()}, events);
}

TEST_F(LaunchElastic, NodeWithOtherSettingsIsRefused) {
  auto first = node("1:2");
  const Event event = next(*first);
  auto stranger = node("2:2");
  EXPECT_EQ(stranger->wait(), 2) << stranger->err();
  EXPECT_TRUE(absl::StrContains(stranger->err(), "nnodes")) << stranger->err();
  end_well({first.get()}, {event});
}

}  // namespace
}  // namespace gradwire::tests
