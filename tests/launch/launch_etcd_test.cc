// Tests of launchers whose rendezvous is in a real etcd, with failures of etcd and of launchers.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/store/etcd/etcd_process.h"
#include "gradwire/tests/launch/launch_process.h"
#include "gradwire/tests/launch/meetings.h"

namespace gradwire::tests {
namespace {

class LaunchEtcd : public ::testing::Test {
 protected:
  void SetUp() override {
    GRADWIRE_NEED_ETCD();
    etcd_.emplace();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", etcd_->port()); }
  std::unique_ptr<LaunchProcess> node(const std::string& nnodes, std::vector<std::string> options = {},
                                      const std::string& program = "tests/launch/meeting_worker") {
    options.insert(options.begin(), {absl::StrCat("--nnodes=", nnodes), "--rdzv_backend=etcd",
                                     absl::StrCat("--rdzv_endpoint=", address()), "--rdzv_id=job",
                                     "--rdzv_conf=keep_alive_interval=1,last_call_timeout=0.2"});
    options.push_back(program);
    return std::make_unique<LaunchProcess>(std::move(options));
  }
  // The node whose launcher serves the round's store.
  static size_t first_of(const std::vector<Met>& met) {
    size_t first = 0;
    while (met.at(first).rank != 0) ++first;
    return first;
  }
  static bool any(const Met&) { return true; }
  static bool started_again(const Met& met) { return met.restarts == 1; }

  std::optional<store::EtcdProcess> etcd_;
};

TEST_F(LaunchEtcd, WorkersUseTheStoreOfTheFirstNode) {
  auto a = node("2"), b = node("2");
  const std::vector<LaunchProcess*> nodes = {a.get(), b.get()};
  end_well(nodes, next_meeting(nodes, any));
}

TEST_F(LaunchEtcd, OthersContinueWithoutTheNodeThatServedTheStore) {
  std::vector<std::unique_ptr<LaunchProcess>> three;
  std::vector<LaunchProcess*> nodes;
  for (int i = 0; i < 3; ++i) nodes.push_back(three.emplace_back(node("1:3", {"--max_restarts=1"})).get());
  const std::vector<Met> before = next_meeting(nodes, [](const Met& met) { return met.world_size == 3; });
  LaunchProcess* const first = nodes[first_of(before)];
  first->send(SIGKILL);
  EXPECT_EQ(first->wait(), -SIGKILL);
  std::erase(nodes, first);
  const std::vector<Met> after = next_meeting(nodes, started_again);
  EXPECT_GT(after[0].round, before[0].round);
  EXPECT_NE(after[0].port, before[0].port);
  end_well(nodes, after);
}

TEST_F(LaunchEtcd, NewNodeReplacesALostOne) {
  auto a = node("2", {"--max_restarts=1"}), b = node("2", {"--max_restarts=1"});
  const std::vector<Met> before = next_meeting({a.get(), b.get()}, any);
  std::unique_ptr<LaunchProcess>& lost = first_of(before) == 0 ? a : b;
  lost->send(SIGKILL);
  EXPECT_EQ(lost->wait(), -SIGKILL);
  lost = node("2", {"--max_restarts=1"});
  const std::vector<LaunchProcess*> nodes = {a.get(), b.get()};
  end_well(nodes, next_meeting(nodes, started_again));
}

TEST_F(LaunchEtcd, FailureIsHandledWhenEtcdIsBack) {
  auto a = node("2", {"--max_restarts=1"}), b = node("2", {"--max_restarts=1"});
  const std::vector<LaunchProcess*> nodes = {a.get(), b.get()};
  const std::vector<Met> before = next_meeting(nodes, any);
  etcd_->kill();
  kill(before[1].pid, SIGKILL);
  etcd_->start();
  const std::vector<Met> after = next_meeting(nodes, started_again);
  EXPECT_EQ(after[0].round, before[0].round + 1);
  etcd_->kill();
  etcd_->start();
  end_well(nodes, after);
}

TEST_F(LaunchEtcd, TimeWithoutEtcdDoesNotCountAsLoss) {
  const std::vector<std::string> options = {"--rdzv_conf=keep_alive_interval=2"};
  auto a = node("2", options), b = node("2", options);
  const std::vector<LaunchProcess*> nodes = {a.get(), b.get()};
  const std::vector<Met> met = next_meeting(nodes, any);
  etcd_->kill();
  // Longer than the time after which a node is lost. That time in turn is longer than the time between the
  // reconnections of two nodes.
  absl::SleepFor(absl::Seconds(7));
  etcd_->start();
  end_well(nodes, met);
}

TEST_F(LaunchEtcd, NodeThatServesTheStoreMayLeave) {
  auto a = node("1:2"), b = node("1:2");
  const std::vector<Met> before =
      next_meeting({a.get(), b.get()}, [](const Met& met) { return met.world_size == 2; });
  LaunchProcess& first = first_of(before) == 0 ? *a : *b;
  LaunchProcess& other = first_of(before) == 0 ? *b : *a;
  first.send(SIGTERM);
  EXPECT_EQ(first.wait(), 128 + SIGTERM) << first.err();
  const std::vector<Met> after = next_meeting({&other}, [](const Met& met) { return met.world_size == 1; });
  EXPECT_EQ(after[0].restarts, 0);
  end_well({&other}, after);
}

TEST_F(LaunchEtcd, UnknownMemberOfEtcdIsSkipped) {
  auto alone = node("1", {absl::StrCat("--rdzv_endpoint=nobody.invalid:1,", address())}, "true");
  EXPECT_EQ(alone->wait(), 0) << alone->err();
}

TEST_F(LaunchEtcd, LostEtcdEndsTheJob) {
  auto a = node("2", {"--rdzv_conf=read_timeout=5"}), b = node("2", {"--rdzv_conf=read_timeout=5"});
  next_meeting({a.get(), b.get()}, any);
  etcd_->kill();
  for (LaunchProcess* each : {a.get(), b.get()}) {
    EXPECT_EQ(each->events_to_the_end(), "");
    EXPECT_EQ(each->wait(), 1);
    EXPECT_TRUE(absl::StrContains(each->err(), "the job's store is lost")) << each->err();
    EXPECT_TRUE(absl::StrContains(each->err(), address())) << each->err();
  }
}

TEST_F(LaunchEtcd, EtcdThatDoesNotStartIsNamed) {
  etcd_->kill();
  auto a = node("2", {"--join_timeout=0.5"});
  EXPECT_EQ(a->wait(), 1);
  EXPECT_EQ(a->complaints().size(), 1u) << a->err();
  EXPECT_TRUE(absl::StrContains(a->err(), "cannot reach the job's store within 500ms")) << a->err();
  EXPECT_TRUE(absl::StrContains(a->err(), address())) << a->err();
}

TEST_F(LaunchEtcd, AnIdCanBeUsedForOneJobOnly) {
  EXPECT_EQ(node("1", {}, "true")->wait(), 0);
  auto again = node("1", {}, "true");
  EXPECT_EQ(again->wait(), 1);
  EXPECT_EQ(again->complaints().size(), 1u) << again->err();
  EXPECT_TRUE(absl::StrContains(again->err(), "the job job is over (succeeded): give a new job an id"))
      << again->err();
  EXPECT_EQ(node("1", {"--rdzv_id=other"}, "false")->wait(), 1);
  auto other_again = node("1", {"--rdzv_id=other"}, "true");
  EXPECT_EQ(other_again->wait(), 1);
  EXPECT_TRUE(absl::StrContains(other_again->err(), "the job other is over (failed: worker 0 "))
      << other_again->err();
  EXPECT_EQ(node("1", {"--rdzv_id=third"}, "true")->wait(), 0);
}

TEST_F(LaunchEtcd, SeveralNodesNeedAnId) {
  LaunchProcess launch({"--nnodes=2", "--rdzv_backend=etcd", "--rdzv_endpoint=" + address(), "true"});
  EXPECT_EQ(launch.wait(), 2);
  EXPECT_EQ(lines(launch.err()).size(), 1u) << launch.err();
  EXPECT_TRUE(absl::StrContains(launch.err(), "--rdzv_id")) << launch.err();
  // A single node runs a new job each time.
  for (int i = 0; i < 2; ++i) {
    LaunchProcess alone({"--rdzv_backend=etcd", "--rdzv_endpoint=" + address(), "true"});
    EXPECT_EQ(alone.wait(), 0) << alone.err();
  }
}

}  // namespace
}  // namespace gradwire::tests
