#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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

}  // namespace
}  // namespace gradwire::tests
