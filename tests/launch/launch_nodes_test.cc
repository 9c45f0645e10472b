#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

// Several launchers on one machine that act as nodes.
class LaunchNodes : public ::testing::Test {
 protected:
  std::unique_ptr<LaunchProcess> node(int rank, std::vector<std::string> options, const std::string& script,
                                      int nnodes = 2) {
    options.push_back(absl::StrCat("--nnodes=", nnodes));
    options.push_back(absl::StrCat("--node_rank=", rank));
    options.push_back(absl::StrCat("--master_port=", port_));
    options.push_back("--master_addr=127.0.0.1");
    return std::make_unique<LaunchProcess>(with_script(std::move(options), script));
  }

  const int port_ = free_port();
};

TEST_F(LaunchNodes, RanksRunThroughNodesOfDifferentSizeAndRole) {
  const std::string script =
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $ROLE_NAME "
      "$ROLE_RANK/$ROLE_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_RUN_ID >&9";
  auto second = node(1, {"--nproc_per_node=2", "--role=trainer"}, script);
  auto first = node(0, {"--role=ps", "--run_id=job"}, script);
  const std::string end = absl::StrCat(" 127.0.0.1 ", port_, " job");
  EXPECT_EQ(lines(first->events_to_the_end()), (std::vector<std::string>{"0/3 0/1 0/2 ps 0/1" + end}));
  std::vector<std::string> trainers = lines(second->events_to_the_end());
  std::sort(trainers.begin(), trainers.end());
  EXPECT_EQ(trainers,
            (std::vector<std::string>{"1/3 0/2 1/2 trainer 0/2" + end, "2/3 1/2 1/2 trainer 1/2" + end}));
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
}

// As behind address translation, where the others' address of the store is of no use on its host.
TEST_F(LaunchNodes, WorkersGetTheAddressOfTheStoreThatTheirOwnLauncherWasGiven) {
  const auto node_at = [&](const std::string& host, const char* is_host) {
    return std::make_unique<LaunchProcess>(with_script(
        {"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=job",
         absl::StrCat("--rdzv_endpoint=", host, ":", port_), absl::StrCat("--rdzv_conf=", is_host)},
        "echo $MASTER_ADDR:$MASTER_PORT >&9"));
  };
  auto host = node_at("127.0.0.1", "is_host=true");
  auto other = node_at("localhost", "is_host=false");
  EXPECT_EQ(host->events_to_the_end(), absl::StrCat("127.0.0.1:", port_, "\n"));
  EXPECT_EQ(other->events_to_the_end(), absl::StrCat("localhost:", port_, "\n"));
  EXPECT_EQ(host->wait(), 0) << host->err();
  EXPECT_EQ(other->wait(), 0) << other->err();
}

TEST_F(LaunchNodes, FailureOnOneNodeEndsTheOthersAndIsTheirExitCode) {
  auto first = node(0, {}, "echo ready >&9; sleep 1000");
  auto second = node(1, {}, "echo ready >&9; read line; exit 6");
  first->events(1);
  first->events_to_the_end();
  EXPECT_EQ(first->wait(), 6);
  EXPECT_EQ(second->wait(), 6);
  for (LaunchProcess* each : {first.get(), second.get()}) {
    EXPECT_TRUE(absl::StrContains(each->err(), "rank      1 (local rank 0, role default)")) << each->err();
    EXPECT_TRUE(absl::StrContains(each->err(), "exit code 6")) << each->err();
  }
}

TEST_F(LaunchNodes, NodeZeroServesUntilTheOthersHaveEnded) {
  auto first = node(0, {}, "exit 0");
  auto second = node(1, {}, "trap 'exit 0' USR1; echo $$ >&9; while :; do sleep 0.05; done");
  const int worker = std::stoi(second->events(1).at(0));
  kill(worker, SIGUSR1);
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(first->wait(), 0) << first->err();
}

TEST_F(LaunchNodes, LossOfNodeZeroEndsTheOthers) {
  auto first = node(0, {}, "echo ready >&9; sleep 1000");
  auto second = node(1, {"--rdzv_conf=read_timeout=5"}, "echo ready >&9; sleep 1000");
  first->events(1);
  second->events(1);
  first->send(SIGKILL);
  EXPECT_EQ(second->wait(), 1);
  EXPECT_TRUE(absl::StrContains(second->err(), "store")) << second->err();
  EXPECT_TRUE(absl::StrContains(second->err(), absl::StrCat(port_))) << second->err();
}

TEST_F(LaunchNodes, MissingNodesAreNamed) {
  auto first = node(0, {"--join_timeout=0.1"}, "true", 3);
  EXPECT_EQ(first->wait(), 1);
  EXPECT_TRUE(absl::StrContains(first->err(), "1 of 3 nodes")) << first->err();
  EXPECT_TRUE(absl::StrContains(first->err(), "node ranks 1, 2 are missing")) << first->err();
  EXPECT_EQ(first->complaints().size(), 1u) << first->err();
}

TEST_F(LaunchNodes, MissingNodeZeroIsNamed) {
  auto second = node(1, {"--join_timeout=0.1"}, "true");
  EXPECT_EQ(second->wait(), 1);
  EXPECT_TRUE(absl::StrContains(second->err(), "cannot reach the job's store")) << second->err();
  EXPECT_TRUE(absl::StrContains(second->err(), absl::StrCat(port_))) << second->err();
}

TEST_F(LaunchNodes, SignalEndsTheWaitForOtherNodes) {
  auto first = node(0, {}, "true");
  // The signal may arrive before the launcher waits, or while it waits; both must end it. Before it handles
  // signals, the default action ends it.
  first->send(SIGTERM);
  const int code = first->wait();
  EXPECT_TRUE(code == 128 + SIGTERM || code == -SIGTERM) << code;
}

}  // namespace
}  // namespace gradwire::tests
