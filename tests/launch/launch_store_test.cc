#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/free_port.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

TEST(LaunchStore, WorkersMeetInTheStoreThatTheLauncherServes) {
  LaunchProcess launch({"--standalone", "--nproc_per_node=3", "tests/launch/store_worker"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  std::vector<std::string> output = lines(launch.out());
  std::sort(output.begin(), output.end());
  EXPECT_EQ(output, (std::vector<std::string>{"1 of 3 on cpu", "2 of 3 on cpu"}));
}

TEST(LaunchStore, RoundsDoNotSeeTheKeysOfPyTorchsGroupsInEarlierOnes) {
  LaunchProcess launch({"--standalone", "--max_restarts=1", "tests/launch/round_keys_worker"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(lines(launch.out()), (std::vector<std::string>{"round 0 found:", "round 1 found: mine"}));
}

TEST(LaunchStore, RoundsOfSeveralNodesDoNotSeeThemEither) {
  const std::string port = absl::StrCat("--master_port=", free_port());
  const auto node = [&](const char* rank) {
    return std::make_unique<LaunchProcess>(
        std::vector<std::string>{"--nnodes=2", rank, "--master_addr=127.0.0.1", port, "--max_restarts=1",
                                 "tests/launch/round_keys_worker"});
  };
  const auto first = node("--node_rank=0");
  const auto second = node("--node_rank=1");
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(lines(first->out()), (std::vector<std::string>{"round 0 found:", "round 1 found: mine"}));
}

}  // namespace
}  // namespace gradwire::tests
