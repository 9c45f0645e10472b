// Tests of workers that start daemons: orphans in sessions of their own.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

// Returns a word of an event. A worker's processes write events of the form "KIND PID", possibly with more
// words.
std::string word(const std::string& event, int number) {
  const std::vector<std::string> words = absl::StrSplit(event, ' ');
  return number < static_cast<int>(words.size()) ? words[number] : "";
}

// A process, identified by a pidfd, so that a reused pid does not matter.
class Watched {
 public:
  explicit Watched(const std::string& event)
      : pid_(std::stoi(word(event, 1))), fd_(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0))) {
    EXPECT_TRUE(fd_ >= 0 || errno == ESRCH);
  }
  Watched(Watched&& other) noexcept : pid_(other.pid_), fd_(std::exchange(other.fd_, -1)) {}
  ~Watched() {
    if (fd_ >= 0) close(fd_);
  }

  void send(int signal) const {
    EXPECT_EQ(syscall(SYS_pidfd_send_signal, fd_, signal, nullptr, 0), 0) << pid_;
  }
  bool gone() const { return ends_within(0); }
  bool ends() const { return ends_within(50000); }

 private:
  bool ends_within(int milliseconds) const {
    pollfd event{.fd = fd_, .events = POLLIN};
    return fd_ < 0 || poll(&event, 1, milliseconds) == 1;
  }

  pid_t pid_;
  int fd_;
};

// Returns the process whose event has this kind.
Watched watched(const std::vector<std::string>& events, const std::string& kind) {
  for (const std::string& event : events) {
    if (word(event, 0) == kind) return Watched(event);
  }
  ADD_FAILURE() << "no " << kind;
  return Watched("none 1");
}

// Script that starts a daemon: an orphan in a session of its own. It runs `first`, writes "daemon PID" and
// keeps running.
std::string daemon(const std::string& first) {
  return absl::StrCat("(setsid sh -c '", first, "; echo daemon $$ >&9; while :; do sleep 0.02; done' &); ");
}
// The same, but the daemon ignores SIGTERM and closes its inherited descriptors.
const char kStubborn[] =
    "(trap '' TERM; setsid sh -c 'echo daemon $$ >&9; exec sleep 1000 >/dev/null 2>&1 9>&-' &); ";

// Script of a worker that writes "worker PID" and then waits for SIGUSR1, which ends it with `code`, or
// SIGTERM.
std::string waits(int code) {
  return absl::StrCat("trap 'exit ", code, "' USR1; echo worker $$ >&9; while :; do sleep 0.02; done");
}

TEST(LaunchOrphans, DaemonEndsWithItsJobAndMayCleanUp) {
  LaunchProcess launch(
      with_script({"--standalone"}, daemon("trap \"echo cleaned >&9; exit\" TERM") + waits(0)));
  const std::vector<std::string> events = launch.events(2);
  watched(events, "worker").send(SIGUSR1);
  EXPECT_EQ(launch.events_to_the_end(), "cleaned\n");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_TRUE(watched(events, "daemon").gone());
}

TEST(LaunchOrphans, DaemonThatIgnoresSigtermIsKilledAfterTheGracePeriod) {
  LaunchProcess launch(with_script({"--standalone", "--grace_period=0.2"}, kStubborn + waits(3)));
  const std::vector<std::string> events = launch.events(2);
  const Watched stubborn = watched(events, "daemon");
  watched(events, "worker").send(SIGUSR1);
  EXPECT_EQ(launch.wait(), 3) << launch.err();
  EXPECT_TRUE(stubborn.gone());
  EXPECT_TRUE(
      absl::StrContains(launch.err(), "processes that workers started did not end within 200ms: killed"))
      << launch.err();
}

TEST(LaunchOrphans, InterruptEndsADaemonAfterTheWorkers) {
  LaunchProcess launch(with_script({"--standalone"}, daemon("trap \"echo daemon ends >&9; exit\" TERM") +
                                                         "trap 'echo worker ends >&9; exit 1' INT; " +
                                                         waits(0)));
  const std::vector<std::string> events = launch.events(2);
  const Watched daemon = watched(events, "daemon");
  launch.send(SIGINT);
  EXPECT_EQ(launch.events_to_the_end(), "worker ends\ndaemon ends\n");
  EXPECT_EQ(launch.wait(), 128 + SIGINT) << launch.err();
  EXPECT_TRUE(daemon.gone());
}

TEST(LaunchOrphans, DaemonRunsAsLongAsAnyWorker) {
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=2"},
                                   "[ $RANK = 1 ] && { " + waits(0) + "; }; echo first $$ >&9; " +
                                       daemon("trap \"echo lives >&9\" USR1") + "exit 0"));
  const std::vector<std::string> events = launch.events(3);
  EXPECT_TRUE(watched(events, "first").ends());
  const Watched daemon = watched(events, "daemon");
  daemon.send(SIGUSR1);
  EXPECT_EQ(launch.events(1).at(0), "lives");
  watched(events, "worker").send(SIGUSR1);
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_TRUE(daemon.gone());
}

TEST(LaunchOrphans, NoProcessOfAFailedRoundRunsInTheNext) {
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=2", "--max_restarts=1", "--grace_period=0.2"},
                  "[ $GRADWIRE_ROUND = 1 ] && echo again >&9; " + std::string(kStubborn) + waits(4)));
  const std::vector<std::string> first = launch.events(4);
  std::vector<Watched> processes;
  for (const std::string& each : first) processes.emplace_back(each);
  watched(first, "worker").send(SIGUSR1);
  std::vector<std::string> second = launch.events(1);
  EXPECT_EQ(second[0], "again");
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(processes[i].gone()) << first[i];
  second = launch.events(5);
  for (const std::string& each : second) {
    if (each != "again") processes.emplace_back(each);
  }
  watched(second, "worker").send(SIGUSR1);
  EXPECT_EQ(launch.wait(), 4) << launch.err();
  EXPECT_EQ(processes.size(), 8u);
  for (const Watched& each : processes) EXPECT_TRUE(each.gone());
}

TEST(LaunchOrphans, KilledLauncherTakesDaemonsWithIt) {
  LaunchProcess launch(with_script({"--standalone", "--nproc_per_node=2"}, kStubborn + waits(0)));
  const std::vector<std::string> events = launch.events(4);
  std::vector<Watched> processes;
  for (const std::string& each : events) processes.emplace_back(each);
  launch.send(SIGKILL);
  EXPECT_EQ(launch.wait(), -SIGKILL);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_TRUE(processes[i].ends()) << events[i];
  EXPECT_EQ(launch.events_to_the_end(), "");
}

TEST(LaunchOrphans, KillingAWorkersParentKillsTheLauncher) {
  LaunchProcess launch(
      with_script({"--standalone", "--nproc_per_node=2"}, "trap 'kill -KILL $PPID' USR2; " + waits(0)));
  const std::vector<std::string> events = launch.events(2);
  Watched(events[0]).send(SIGUSR2);
  EXPECT_EQ(launch.wait(), -SIGKILL) << launch.err();
  EXPECT_EQ(launch.events_to_the_end(), "");
}

TEST(LaunchOrphans, ShortLivedDaemonsAreReapedWhileTheJobRuns) {
  LaunchProcess launch(
      with_script({"--standalone"},
                  "for i in 1 2 3 4 5 6 7 8 9 10; do (setsid true &); done; "
                  "until [ $(wc -w < /proc/$PPID/task/$PPID/children) = 1 ]; do sleep 0.01; done; "
                  "echo alone >&9"));
  EXPECT_EQ(launch.events(1).at(0), "alone");
  EXPECT_EQ(launch.wait(), 0) << launch.err();
}

TEST(LaunchOrphans, RestartsLeaveNoDescriptorsOrProcessesBehind) {
  constexpr int kRestarts = 20;
  LaunchProcess launch(with_script(
      {"--standalone", absl::StrCat("--max_restarts=", kRestarts), "--redirects=3",
       absl::StrCat("--log_dir=", ::testing::TempDir(), "/orphans")},
      absl::StrCat(
          "launcher=$(cut -d ' ' -f 4 /proc/$PPID/stat); "
          "echo $(wc -w < /proc/$PPID/task/$PPID/children) $(ls /proc/$PPID/fd | wc -l) "
          "$(ls /proc/$launcher/fd | wc -l) $(wc -w < /proc/$launcher/task/$launcher/children) >&9; ",
          "(setsid true &); (setsid sleep 1000 &); [ $GRADWIRE_ROUND = ", kRestarts, " ]")));
  const std::vector<std::string> counts = launch.events(kRestarts + 1);
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  // Launcher and reaper may not have closed the descriptors for the start of the worker yet.
  constexpr int kDescriptorsOfOneStart = 6;
  for (const std::string& each : counts) {
    EXPECT_EQ(word(each, 0), "1");
    EXPECT_LE(std::stoi(word(each, 1)), std::stoi(word(counts[0], 1)) + kDescriptorsOfOneStart) << each;
    EXPECT_LE(std::stoi(word(each, 2)), std::stoi(word(counts[0], 2)) + kDescriptorsOfOneStart) << each;
    EXPECT_EQ(word(each, 3), "1");
  }
}

}  // namespace
}  // namespace gradwire::tests
