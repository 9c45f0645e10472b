// Tests of jobs that fail and are restarted, on one node and on two.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

std::vector<std::string> sorted(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  return lines;
}

// Script of a worker. It writes which start of the job it is. In starts before `restart`, rank 1 fails after
// rank 0 has written it too; rank 0 waits until it is ended.
std::string fails_until(int restart) {
  static int number = 0;
  const std::string file =
      absl::StrCat(::testing::TempDir(), "/said.", getpid(), ".", ++number, ".$GRADWIRE_ROUND");
  return absl::StrCat(
      "echo $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS $GRADWIRE_ROUND $RANK >&9; "
      "[ $TORCHELASTIC_RESTART_COUNT -ge ",
      restart, " ] && exit 0; [ $RANK = 0 ] && { : >", file, "; exec sleep 1000; }; until [ -e ", file,
      " ]; do sleep 0.01; done; exit 7");
}

TEST(LaunchRestart, FailedGroupIsRestartedAndMaySucceed) {
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=2", "--max_restarts=2"}, fails_until(1)));
  EXPECT_EQ(sorted(launch.events(2)), (std::vector<std::string>{"0/2 0 0", "0/2 0 1"}));
  EXPECT_EQ(sorted(launch.events(2)), (std::vector<std::string>{"1/2 1 0", "1/2 1 1"}));
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_TRUE(absl::StrContains(launch.err(), "worker 1 (role default, local rank 1, pid ")) << launch.err();
  EXPECT_TRUE(absl::StrContains(launch.err(), "round 1 begins: 1 node, 2 workers; restart 1 of 2"))
      << launch.err();
}

TEST(LaunchRestart, LastFailureWithoutRestartsLeftFailsTheJob) {
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=2", "--max_restarts=2"}, fails_until(100)));
  EXPECT_EQ(sorted(launch.events(6)),
            (std::vector<std::string>{"0/2 0 0", "0/2 0 1", "1/2 1 0", "1/2 1 1", "2/2 2 0", "2/2 2 1"}));
  EXPECT_EQ(launch.wait(), 7) << launch.err();
  EXPECT_TRUE(absl::StrContains(launch.err(), "exit code 7")) << launch.err();
}

TEST(LaunchRestart, EachStartHasLogsOfItsOwn) {
  const std::string logs = absl::StrCat(::testing::TempDir(), "/restart_logs");
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=2", "--max_restarts=1", "--redirects=3",
                                    absl::StrCat("--log_dir=", logs), "--run_id=job"},
                                   fails_until(1)));
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  for (const char* attempt : {"attempt_0", "attempt_1"}) {
    for (const char* rank : {"0", "1"}) {
      EXPECT_TRUE(std::filesystem::exists(absl::StrCat(logs, "/job/", attempt, "/", rank, "/stdout.log")))
          << attempt << " " << rank;
    }
  }
}

TEST(LaunchRestart, OldWorkersHaveEndedBeforeTheNewOnesStart) {
  // The old rank 0 ends slowly. The new workers fail if its file still exists.
  const std::string lock = absl::StrCat(::testing::TempDir(), "/restart_lock");
  std::filesystem::remove(lock);
  LaunchProcess launch(with_script(
      {"--standalone", "--nproc_per_node=2", "--max_restarts=1"},
      absl::StrCat("lock=", lock,
                   "; if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then [ -e $lock ] && exit 9; exit 0; fi; "
                   "if [ $RANK = 0 ]; then : >$lock; trap 'sleep 0.3; rm $lock; exit 0' TERM; "
                   "while :; do sleep 0.02; done; fi; "
                   "until [ -e $lock ]; do sleep 0.01; done; exit 7")));
  EXPECT_EQ(launch.wait(), 0) << launch.err();
}

TEST(LaunchRestart, SignalEndsTheJobWithoutARestart) {
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=2", "--max_restarts=5"}, "echo ready >&9; sleep 1000"));
  launch.events(2);
  launch.send(SIGTERM);
  EXPECT_EQ(launch.events_to_the_end(), "");
  EXPECT_EQ(launch.wait(), 128 + SIGTERM) << launch.err();
}

class LaunchRestartNodes : public ::testing::Test {
 protected:
  std::unique_ptr<LaunchProcess> node(std::vector<std::string> options, const std::string& script) {
    options.insert(options.begin(), {"--nnodes=2", absl::StrCat("--rdzv_endpoint=127.0.0.1:", port_)});
    return std::make_unique<LaunchProcess>(with_script(std::move(options), script));
  }

  const int port_ = free_port();
};

TEST_F(LaunchRestartNodes, FailureOnOneNodeRestartsAll) {
  const std::string script = fails_until(1);
  auto first = node({"--max_restarts=1"}, script);
  auto second = node({"--max_restarts=1"}, script);
  EXPECT_EQ(sorted({first->events(1).at(0), second->events(1).at(0)}),
            (std::vector<std::string>{"0/1 0 0", "0/1 0 1"}));
  EXPECT_EQ(sorted({first->events(1).at(0), second->events(1).at(0)}),
            (std::vector<std::string>{"1/1 1 0", "1/1 1 1"}));
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
}

TEST_F(LaunchRestartNodes, SettingsThatDifferAreBothNamed) {
  auto first = node({"--max_restarts=1"}, "sleep 1000");
  auto second = node({"--max_restarts=2"}, "sleep 1000");
  // The second one is refused; the first one keeps waiting.
  siginfo_t info{};
  ASSERT_EQ(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT), 0);
  LaunchProcess& refused = info.si_pid == first->pid() ? *first : *second;
  LaunchProcess& other = info.si_pid == first->pid() ? *second : *first;
  EXPECT_EQ(refused.wait(), 2) << refused.err();
  EXPECT_TRUE(absl::StrContains(refused.err(), "max_restarts")) << refused.err();
  other.send(SIGTERM);
  EXPECT_EQ(other.wait(), 128 + SIGTERM) << other.err();
}

}  // namespace
}  // namespace gradwire::tests
