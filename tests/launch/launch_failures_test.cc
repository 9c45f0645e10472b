// Tests of workers that fail in various ways, and of the launcher's messages.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

void expect_printed(const LaunchProcess& launch, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_TRUE(absl::StrContains(launch.err(), part)) << launch.err() << "\n  lacks " << part;
  }
}

TEST(LaunchFailures, UncaughtErrorIsInTheSummary) {
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", "tests/launch/error_worker"});
  EXPECT_EQ(launch.wait(), 128 + SIGABRT);
  expect_printed(launch, {"rank      1 (local rank 1, role default)", "ended by  SIGABRT",
                          "message   NOT_FOUND: no shard 7 here [worker \"server3\"]"});
}

TEST(LaunchFailures, WorkerThatEndsWithoutShutdownIsTheFirstFailure) {
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", "tests/launch/rpc_worker", "leave"});
  EXPECT_EQ(launch.wait(), 1);
  expect_printed(launch,
                 {"rank      0 (local rank 0, role default)", "ended by  exit code 0",
                  "message   worker \"default0\" ended without rpc::shutdown()", "\nthen\n", "SIGABRT"});
}

TEST(LaunchFailures, ErrorFileOfAPythonWorkerIsInTheSummary) {
  const std::string script = absl::StrCat(::testing::TempDir(), "/fails.py");
  std::ofstream(script) << R"(import json, os, sys, time
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "ValueError: bad shape", "extraInfo":
              {"py_callstack": "Traceback ...", "timestamp": str(int(time.time()))}}}, file)
sys.exit(1)
)";
  LaunchProcess launch(
      {"--standalone", "--redirects=3", absl::StrCat("--log_dir=", ::testing::TempDir()), script});
  EXPECT_EQ(launch.wait(), 1);
  expect_printed(launch, {"rank      0", "ended by  exit code 1", "message   ValueError: bad shape"});
}

TEST(LaunchFailures, HangingWorkerIsKilledBeforeTheNextStart) {
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=2", "--max_restarts=1", "--grace_period=0.2"},
                  "[ $GRADWIRE_ROUND = 1 ] && exit 0; "
                  "[ $RANK = 1 ] && { echo $$ >&9; while :; do sleep 0.02; done; }; "
                  "trap '' TERM; echo hangs >&9; while :; do sleep 1; done"));
  // Rank 1 is killed once rank 0 ignores the signal.
  std::vector<std::string> events = launch.events(2);
  kill(std::stoi(events[0] == "hangs" ? events[1] : events[0]), SIGKILL);
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  expect_printed(launch, {"1 workers did not end within 200ms: killed", "round 1 begins"});
}

TEST(LaunchFailures, StoppedWorkerEndsWithTheOthers) {
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=2"}, "echo $$ >&9; exec sleep 1000"));
  const std::vector<std::string> workers = launch.events(2);
  kill(std::stoi(workers[0]), SIGSTOP);
  kill(std::stoi(workers[1]), SIGKILL);
  EXPECT_EQ(launch.events_to_the_end(), "");
  EXPECT_EQ(launch.wait(), 128 + SIGKILL) << launch.err();
  EXPECT_FALSE(absl::StrContains(launch.err(), "did not end within")) << launch.err();
}

TEST(LaunchFailures, FailureAfterOthersSucceededFailsTheJob) {
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=2", "--max_restarts=1"},
                                   "[ $RANK = 0 ] && { echo $GRADWIRE_ROUND >&9; exit 0; }; "
                                   "trap 'exit 5' USR1; echo $$ >&9; while :; do sleep 0.02; done"));
  for (int round = 0; round < 2; ++round) {
    std::vector<std::string> events = launch.events(2);
    if (events[0] == absl::StrCat(round)) std::swap(events[0], events[1]);  // A pid is larger.
    EXPECT_EQ(events[1], absl::StrCat(round));
    kill(std::stoi(events[0]), SIGUSR1);
  }
  EXPECT_EQ(launch.wait(), 5) << launch.err();
  expect_printed(launch, {"rank      1", "ended by  exit code 5"});
}

TEST(LaunchFailures, SimultaneousFailuresAreBothInTheSummary) {
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=3"},
                  "[ $RANK = 2 ] && exec sleep 1000; trap '' TERM; trap \"exit 4$RANK\" USR1; "
                  "echo $$ >&9; while :; do sleep 0.02; done"));
  const std::vector<std::string> workers = launch.events(2);
  for (const std::string& worker : workers) kill(std::stoi(worker), SIGUSR1);
  const int code = launch.wait();
  EXPECT_TRUE(code == 40 || code == 41) << code;
  expect_printed(launch, {absl::StrCat("ended by  exit code ", code), absl::StrCat("exit code ", 81 - code),
                          workers[0], workers[1], "\nthen\n"});
  // A worker that the launcher ended did not fail.
  EXPECT_FALSE(absl::StrContains(launch.err(), "SIGTERM")) << launch.err();
}

TEST(LaunchFailures, LauncherKilledDuringARestartLeavesNothing) {
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=2", "--max_restarts=1"},
                                   "if [ $RANK = 0 ]; then trap 'echo stopping >&9' TERM; echo 0 $$ >&9; "
                                   "while :; do sleep 0.02; done; fi; echo 1 $$ >&9; exec sleep 1000"));
  const std::vector<std::string> workers = launch.events(2);
  kill(std::stoi(workers[0][0] == '1' ? workers[0].substr(2) : workers[1].substr(2)), SIGKILL);
  EXPECT_EQ(launch.events(1).at(0), "stopping");
  launch.send(SIGKILL);
  EXPECT_EQ(launch.wait(), -SIGKILL);
  EXPECT_EQ(launch.events_to_the_end(), "");
}

TEST(LaunchFailures, LogsThatCannotBeWrittenLaterAreReported) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/vanishing");
  LaunchProcess launch(with_script(
      {"--standalone", "--max_restarts=1", "--redirects=1", "--run_id=id", "--log_dir=" + directory},
      absl::StrCat("rm -r ", directory, "; : >", directory, "; exit 3")));
  EXPECT_EQ(launch.wait(), 1) << launch.err();
  expect_printed(launch, {"cannot create log directory " + directory});
}

}  // namespace
}  // namespace gradwire::tests
