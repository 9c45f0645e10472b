// Nodes that come and go: launchers that play nodes on one machine.
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

class LaunchElastic : public testing::Test {
 protected:
  // Says how large the job is and how often it was started again, and works until it is told to end; with
  // USR1 well.
  std::unique_ptr<LaunchProcess> node(const std::string& nnodes, std::vector<std::string> options = {}) {
    options.insert(options.begin(),
                   {absl::StrCat("--nnodes=", nnodes), absl::StrCat("--rdzv_endpoint=127.0.0.1:", port_),
                    "--rdzv_conf=last_call_timeout=0.2", "--rdzv_id=job"});
    return std::make_unique<LaunchProcess>(
        with_script(std::move(options),
                    "trap 'exit 0' USR1; echo \"$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $$\" >&9; "
                    "while :; do sleep 0.02; done"));
  }

  // For tests in which one is lost: after three such seconds, so that a loaded machine makes none that is
  // not.
  static constexpr char kSoonMissed[] = "--rdzv_conf=keep_alive_interval=1";

  struct Said {
    std::string job;  // world size and restarts
    pid_t worker = 0;
  };
  static Said next(LaunchProcess& node) {
    const std::string line = node.events(1).at(0);
    const size_t space = line.rfind(' ');
    return {line.substr(0, space), std::stoi(line.substr(space + 1))};
  }
  static void end_well(const std::vector<LaunchProcess*>& nodes, const std::vector<Said>& said) {
    for (const Said& each : said) kill(each.worker, SIGUSR1);
    for (LaunchProcess* each : nodes) EXPECT_EQ(each->wait(), 0) << each->err();
  }

  const int port_ = free_port();
};

TEST_F(LaunchElastic, ANodeThatArrivesGetsInWithoutARestartCounted) {
  auto first = node("1:2");
  EXPECT_EQ(next(*first).job, "1 0");
  auto second = node("1:2");
  const std::vector<Said> said = {next(*first), next(*second)};
  EXPECT_EQ(said[0].job, "2 0");
  EXPECT_EQ(said[1].job, "2 0");
  end_well({first.get(), second.get()}, said);
}

TEST_F(LaunchElastic, ALostNodeIsARestartOfTheOthers) {
  auto first = node("1:3", {"--max_restarts=1", kSoonMissed});
  EXPECT_EQ(next(*first).job, "1 0");
  auto second = node("1:3", {"--max_restarts=1", kSoonMissed});
  EXPECT_EQ(next(*first).job, "2 0");
  EXPECT_EQ(next(*second).job, "2 0");
  second->send(SIGKILL);
  EXPECT_EQ(second->wait(), -SIGKILL);
  const std::vector<Said> said = {next(*first)};
  EXPECT_EQ(said[0].job, "1 1");
  end_well({first.get()}, said);
  // Nobody has to look for the reason on the node that is gone.
  EXPECT_TRUE(absl::StrContains(first->err(), "; before: node ")) << first->err();
}

TEST_F(LaunchElastic, WithoutRestartsALostNodeEndsTheJob) {
  auto first = node("1:3", {kSoonMissed});
  EXPECT_EQ(next(*first).job, "1 0");
  auto second = node("1:3", {kSoonMissed});
  EXPECT_EQ(next(*first).job, "2 0");
  EXPECT_EQ(next(*second).job, "2 0");
  second->send(SIGKILL);
  EXPECT_EQ(first->wait(), 1) << first->err();
  EXPECT_TRUE(absl::StrContains(first->err(), "was lost")) << first->err();
}

TEST_F(LaunchElastic, ANodeThatIsStoppedLeavesTheOthersAtWork) {
  auto first = node("1:2");
  EXPECT_EQ(next(*first).job, "1 0");
  auto second = node("1:2");
  EXPECT_EQ(next(*first).job, "2 0");
  EXPECT_EQ(next(*second).job, "2 0");
  second->send(SIGTERM);
  EXPECT_EQ(second->wait(), 128 + SIGTERM) << second->err();
  const std::vector<Said> said = {next(*first)};
  EXPECT_EQ(said[0].job, "1 0");
  end_well({first.get()}, said);
}

TEST_F(LaunchElastic, ANodeTooManyWaitsForItsTurn) {
  auto first = node("1:2");
  EXPECT_EQ(next(*first).job, "1 0");
  auto second = node("1:2");
  EXPECT_EQ(next(*first).job, "2 0");
  EXPECT_EQ(next(*second).job, "2 0");
  auto third = node("1:2");
  second->send(SIGTERM);
  EXPECT_EQ(second->wait(), 128 + SIGTERM) << second->err();
  // The third takes the place, at once or after a round of the first alone.
  Said mine = next(*first);
  if (mine.job == "1 0") mine = next(*first);
  const std::vector<Said> said = {mine, next(*third)};
  EXPECT_EQ(said[0].job, "2 0");
  EXPECT_EQ(said[1].job, "2 0");
  end_well({first.get(), third.get()}, said);
}

TEST_F(LaunchElastic, ANodeOfAnotherJobIsTold) {
  auto first = node("1:2");
  const Said said = next(*first);
  auto stranger = node("2:2");
  EXPECT_EQ(stranger->wait(), 2) << stranger->err();
  EXPECT_TRUE(absl::StrContains(stranger->err(), "nnodes")) << stranger->err();
  end_well({first.get()}, {said});
}

}  // namespace
}  // namespace gradwire::tests
