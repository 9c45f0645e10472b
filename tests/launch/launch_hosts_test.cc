// Tests with two hosts: network namespaces with a link between them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/tests/launch/launch_process.h"
#include "gradwire/tests/launch/meetings.h"
#include "gradwire/tools/bench/run/split_network.h"

namespace gradwire::tests {
namespace {

using bench::SplitNetwork;

class LaunchHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<SplitNetwork>> made = SplitNetwork::make();
    GRADWIRE_NEEDS("network_namespaces", made.status());
    network_ = *std::move(made);
  }

  void start(const std::vector<std::string>& left, const std::vector<std::string>& right) {
    left_ = launch(left, network_->left_fd());
    right_ = launch(right, network_->right_fd());
    both_ = {left_.get(), right_.get()};
  }
  void cut() {
    const absl::Status status = bench::cut_link(right_->pid());
    ASSERT_TRUE(status.ok()) << status;
  }
  static std::string endpoint() { return absl::StrCat(SplitNetwork::left_address(), ":29400"); }
  void expect_right_lost_the_store() {
    EXPECT_EQ(right_->events_to_the_end(), "");
    EXPECT_EQ(right_->wait(), 1);
    EXPECT_TRUE(absl::StrContains(right_->err(), "the job's store is lost")) << right_->err();
    EXPECT_TRUE(absl::StrContains(right_->err(), endpoint())) << right_->err();
  }

  std::unique_ptr<SplitNetwork> network_;
  std::unique_ptr<LaunchProcess> left_, right_;
  std::vector<LaunchProcess*> both_;

 private:
  static std::string token_file() {
    const std::string path = absl::StrCat(::testing::TempDir(), "/token");
    if (access(path.c_str(), F_OK) != 0) LaunchProcess({"--make_token", path}).wait();
    return path;
  }
  // The hosts share a token, without which launchers refuse to serve other hosts.
  static std::unique_ptr<LaunchProcess> launch(std::vector<std::string> options, int network) {
    options.push_back("--token_file=" + token_file());
    options.insert(options.end(), {"--rdzv_conf=keep_alive_interval=2,last_call_timeout=0.2,read_timeout=5",
                                   "tests/launch/meeting_worker"});
    return std::make_unique<LaunchProcess>(std::move(options), std::map<std::string, std::string>(), network);
  }
};

bool any(const Met&) { return true; }

TEST_F(LaunchHosts, WorkersUseTheStoreOnNodeZero) {
  const std::string address = "--master_addr=" + SplitNetwork::left_address();
  start({"--nnodes=2", "--node_rank=0", address}, {"--nnodes=2", "--node_rank=1", address});
  const std::vector<Met> met = next_meeting(both_, any);
  EXPECT_EQ(met[0].rank, 0);
  EXPECT_EQ(met[0].port, 29500);
  end_well(both_, met);
}

TEST_F(LaunchHosts, HostOfTheEndpointServesTheStore) {
  const std::vector<std::string> options = {"--nnodes=2", "--rdzv_endpoint=" + endpoint()};
  start(options, options);
  end_well(both_, next_meeting(both_, any));
}

TEST_F(LaunchHosts, CutLinkEndsAJobThatNeedsBothHosts) {
  const std::vector<std::string> options = {"--nnodes=2", "--rdzv_endpoint=" + endpoint()};
  start(options, options);
  next_meeting(both_, any);
  cut();
  EXPECT_EQ(left_->events_to_the_end(), "");
  EXPECT_EQ(left_->wait(), 1);
  EXPECT_TRUE(absl::StrContains(left_->err(), "was lost: no heartbeat from its launcher for 6s"))
      << left_->err();
  expect_right_lost_the_store();
}

TEST_F(LaunchHosts, ElasticJobContinuesOnTheHostOfTheStore) {
  const std::vector<std::string> options = {"--nnodes=1:2", "--max_restarts=1",
                                            "--rdzv_endpoint=" + endpoint()};
  start(options, options);
  next_meeting(both_, [](const Met& met) { return met.world_size == 2; });
  cut();
  end_well({left_.get()}, next_meeting({left_.get()}, [](const Met& met) { return met.restarts == 1; }));
  expect_right_lost_the_store();
}

}  // namespace
}  // namespace gradwire::tests
