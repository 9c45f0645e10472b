#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/version.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Launch, AllWorkersSucceedingGivesZero) {
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=3"}, "echo $RANK >&9"));
  std::vector<std::string> ranks = lines(launch.events_to_the_end());
  std::sort(ranks.begin(), ranks.end());
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(ranks, (std::vector<std::string>{"0", "1", "2"}));
}

TEST(Launch, FailureOfOneWorkerEndsTheRestAndBecomesTheExitCode) {
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=3", "--role=trainer"},
                                   "if [ $RANK = 1 ]; then echo $$ >&9; exit 3; fi; sleep 1000"));
  const std::string pid = launch.events(1).at(0);
  launch.events_to_the_end();
  EXPECT_EQ(launch.wait(), 3);
  for (const std::string& part :
       {std::string("rank      1 (local rank 1, role trainer)"),
        absl::StrCat("host      ", host_name(), ", pid ", pid), std::string("ended by  exit code 3")}) {
    EXPECT_TRUE(contains(launch.err(), part)) << launch.err() << "\n  lacks " << part;
  }
}

TEST(Launch, WorkerKilledBySignalGivesItsNumber) {
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=2"},
                                   "if [ $RANK = 0 ]; then kill -KILL $$; fi; sleep 1000"));
  EXPECT_EQ(launch.wait(), 128 + SIGKILL);
  EXPECT_TRUE(contains(launch.err(), "rank      0 (")) << launch.err();
  EXPECT_TRUE(contains(launch.err(), "ended by  SIGKILL")) << launch.err();
}

TEST(Launch, WorkerThatIgnoresTermIsKilledAfterTheGracePeriod) {
  std::remove((::testing::TempDir() + "/ignores_term").c_str());
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=2", "--grace_period=0.2"},
                  "if [ $RANK = 0 ]; then trap '' TERM; : >\"$TEST_TMPDIR/ignores_term\"; "
                  "echo >&9; while :; do sleep 1; done; fi; "
                  "until [ -e \"$TEST_TMPDIR/ignores_term\" ]; do sleep 0.01; done; exit 4"));
  launch.events(1);
  // Rank 1 fails once rank 0 ignores SIGTERM. Rank 0 would otherwise run indefinitely.
  launch.events_to_the_end();
  EXPECT_EQ(launch.wait(), 4);
}

TEST(Launch, WorkerMayCleanUpWithinTheGracePeriod) {
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=2"},
                  "if [ $RANK = 0 ]; then trap 'echo cleaned >&9; exit 0' TERM; echo $$ >&9; while :; do "
                  "sleep 0.05; done; fi; echo $$ >&9; while :; do sleep 0.05; done"));
  const std::vector<std::string> pids = launch.events(2);
  // Kill either of the two: the test checks the end of the other.
  kill(std::stoi(pids[0]), SIGKILL);
  launch.events_to_the_end();
  EXPECT_EQ(launch.wait(), 137);
}

class LaunchSignal : public ::testing::TestWithParam<int> {};

TEST_P(LaunchSignal, ReachesTheWorkers) {
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=2"},
                  "trap 'echo got INT >&9; exit 1' INT; trap 'echo got TERM >&9; exit 1' TERM; "
                  "trap 'echo got HUP >&9; exit 1' HUP; trap 'echo got QUIT >&9; exit 1' QUIT; "
                  "echo ready >&9; while :; do sleep 0.05; done"));
  launch.events(2);
  launch.send(GetParam());
  const std::string got = absl::StrCat("got ", sigabbrev_np(GetParam()));
  EXPECT_EQ(lines(launch.events_to_the_end()), (std::vector<std::string>{got, got}));
  EXPECT_EQ(launch.wait(), 128 + GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, LaunchSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT));

TEST(Launch, SignalThatWasIgnoredAtTheStartStaysIgnored) {
  // nohup does the same.
  signal(SIGHUP, SIG_IGN);
  LaunchProcess launch(with_script({"--standalone"}, "echo ready >&9; sleep 0.3; exit 5"));
  signal(SIGHUP, SIG_DFL);
  launch.events(1);
  launch.send(SIGHUP);
  EXPECT_EQ(launch.wait(), 5);
}

TEST(Launch, LauncherKilledTakesAllWithIt) {
  // Each worker is a shell that waits for a child. The kernel's parent-death signal alone would not end the
  // child.
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=3"}, "echo ready >&9; sleep 1000; true"));
  launch.events(3);
  launch.send(SIGKILL);
  EXPECT_EQ(launch.wait(), -SIGKILL);
  EXPECT_EQ(launch.events_to_the_end(), "");
}

// Returns the masks of blocked and ignored signals, without 32 and above, which glibc reserves.
std::vector<uint64_t> signal_masks(const std::string& status) {
  std::vector<uint64_t> found;
  for (const std::string& line : lines(status)) {
    if (line.rfind("SigBlk", 0) != 0 && line.rfind("SigIgn", 0) != 0) continue;
    found.push_back(std::stoull(line.substr(line.find(':') + 1), nullptr, 16) & 0x7fffffff);
  }
  EXPECT_EQ(found.size(), 2u);
  return found;
}

TEST(Launch, SignalsOfWorkersAreThoseOfTheLauncher) {
  std::stringstream own;
  own << std::ifstream("/proc/self/status").rdbuf();
  LaunchProcess launch({"--standalone", "cat", "/proc/self/status"});
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(signal_masks(launch.out()), signal_masks(own.str()));
}

TEST(Launch, WorkersInheritNoDescriptorOfTheLauncher) {
  // The program lists its descriptors that are sockets or epoll instances, as the launcher has. There must be
  // none.
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", "--redirects=1",
                        absl::StrCat("--log_dir=", ::testing::TempDir(), "/fds"), "--run_id=fds", "find",
                        "/proc/self/fd/", "-type", "l", "-lname", "*eventpoll*", "-o", "-lname", "*socket*"});
  EXPECT_EQ(launch.wait(), 0);
  for (const char* rank : {"0", "1"}) {
    std::ifstream log(absl::StrCat(::testing::TempDir(), "/fds/fds/attempt_0/", rank, "/stdout.log"));
    std::string found;
    EXPECT_FALSE(std::getline(log, found)) << found;
  }
}

TEST(Launch, EnvironmentIsThatOfTorchrun) {
  const std::string log_dir = absl::StrCat(::testing::TempDir(), "/env");
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", "--role=ps", "--rdzv_id=job", "-r", "1",
                        "--log_dir", log_dir, "env"});
  EXPECT_EQ(launch.wait(), 0);
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream log(absl::StrCat(log_dir, "/job/attempt_0/", rank, "/stdout.log"));
    std::map<std::string, std::string> environment;
    for (std::string line; std::getline(log, line);)
      environment.insert(absl::StrSplit(line, absl::MaxSplits('=', 1)));
    const std::map<std::string, std::string> expected = {
        {"RANK", absl::StrCat(rank)},
        {"LOCAL_RANK", absl::StrCat(rank)},
        {"ROLE_RANK", absl::StrCat(rank)},
        {"WORLD_SIZE", "2"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"ROLE_WORLD_SIZE", "2"},
        {"GROUP_RANK", "0"},
        {"GROUP_WORLD_SIZE", "1"},
        {"ROLE_NAME", "ps"},
        {"MASTER_ADDR", "localhost"},
        {"TORCHELASTIC_RESTART_COUNT", "0"},
        {"TORCHELASTIC_MAX_RESTARTS", "0"},
        {"TORCHELASTIC_RUN_ID", "job"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"OMP_NUM_THREADS", "1"},
    };
    for (const auto& [name, value] : expected) EXPECT_EQ(environment[name], value) << name;
    EXPECT_GT(std::atoi(environment["MASTER_PORT"].c_str()), 0);
  }
  EXPECT_TRUE(contains(launch.err(), "OMP_NUM_THREADS=1")) << launch.err();
}

TEST(Launch, OmpNumThreadsOfTheUserStaysWithoutANote) {
  LaunchProcess launch(with_script({"--standalone"}, "echo $OMP_NUM_THREADS"), {{"OMP_NUM_THREADS", "7"}});
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.out(), "7\n");
  EXPECT_FALSE(absl::StrContains(launch.err(), "OMP_NUM_THREADS")) << launch.err();
}

TEST(Launch, PythonScriptRunsByPython) {
  const std::string script = absl::StrCat(::testing::TempDir(), "/worker.py");
  std::ofstream(script) << "import os, sys\nprint(os.environ['RANK'], sys.argv[1])\n";
  LaunchProcess launch({"--standalone", script, "--tee"});
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.out(), "0 --tee\n");
}

TEST(Launch, HelpGoesToStandardOutput) {
  LaunchProcess launch({"--help"});
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_TRUE(contains(launch.out(), "--nproc_per_node=N"));
  EXPECT_EQ(launch.err(), "");
}

TEST(Launch, VersionGoesToStandardOutput) {
  LaunchProcess launch({"--version"});
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(launch.out(), absl::StrCat("gradwire ", kVersion, "\n"));
  EXPECT_EQ(launch.err(), "");
}

TEST(Launch, WrongCommandLineExitsWithTwoAndOneLine) {
  const std::string data = absl::StrCat(::testing::TempDir(), "/data");
  std::ofstream file(data);
  file << "no program\n";
  file.close();
  for (const auto& [args, part] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--nonsense", "sh"}, "--nonsense"},
           {{"--nproc_per_node=x", "sh"}, "--nproc_per_node"},
           {{"--standalone", "/no/such/program"}, "/no/such/program"},
           {{"--standalone", "no-such-program"}, "no-such-program"},
           {{"--standalone", data}, data}}) {
    LaunchProcess launch(args);
    EXPECT_EQ(launch.wait(), 2) << part;
    EXPECT_EQ(lines(launch.err()).size(), 1u) << launch.err();
    EXPECT_TRUE(contains(launch.err(), part)) << launch.err();
  }
}

TEST(Launch, PortInUseExitsWithOneAndOneLine) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);
  LaunchProcess launch({absl::StrCat("--master_port=", port), "true"});
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_EQ(lines(launch.err()).size(), 1u) << launch.err();
  EXPECT_TRUE(contains(launch.err(), absl::StrCat(port))) << launch.err();
  close(fd);
}

}  // namespace
}  // namespace gradwire::tests
