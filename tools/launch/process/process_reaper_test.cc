#include "gradwire/tools/launch/process/process_reaper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

constexpr int kTooLongMilliseconds = 50000;
constexpr absl::Duration kTooLong = absl::Milliseconds(kTooLongMilliseconds);

// Script that starts a daemon: a process in a session of its own, whose parent ends at once. It prints its
// pid after it has run `first`.
std::string detached(const std::string& first) {
  return absl::StrCat("(setsid sh -c '", first, "; echo $$; while :; do sleep 0.02; done' &);");
}

class Reaping : public ::testing::Test {
 protected:
  Reaping() : reaper_(*ProcessReaper::start()), pipe_(*make_pipe()) {}

  // Starts a shell script that writes to the test's pipe.
  ProcessReaper::Started start(const std::string& script) {
    absl::StatusOr<ProcessReaper::Started> started = try_start({"sh", "-c", script});
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  }
  absl::StatusOr<ProcessReaper::Started> try_start(std::vector<std::string> argv,
                                                   const std::string& path = "/bin/sh") {
    WorkerStart start{.command = {.path = path, .argv = std::move(argv)},
                      .environment = {"PATH=/usr/bin:/bin", "EMPTY="},
                      .stdout_fd = pipe_.write_end.get()};
    sigemptyset(&start.signal_mask);
    return reaper_->start_worker(start);
  }

  // Reads the next line, without its newline; "" at the end of the pipe.
  std::string line() {
    std::string text;
    while (true) {
      pollfd event{.fd = pipe_.read_end.get(), .events = POLLIN};
      char byte;
      if (poll(&event, 1, kTooLongMilliseconds) <= 0) {
        ADD_FAILURE() << "timed out waiting for a line";
        return text;
      }
      if (read_retrying(pipe_.read_end.get(), &byte, 1) != 1 || byte == '\n') return text;
      text.push_back(byte);
    }
  }
  // Waits until all processes with the write end have ended. Returns whether no more lines came.
  bool all_end() {
    pipe_.write_end.reset();
    return line().empty();
  }

  Ending await_end(const ProcessReaper::Started& worker) {
    pollfd event{.fd = worker.pid_fd.get(), .events = POLLIN};
    EXPECT_EQ(poll(&event, 1, kTooLongMilliseconds), 1);
    const std::optional<Ending> ending = reaper_->ending(worker.pid);
    EXPECT_TRUE(ending.has_value());
    return ending.value_or(Ending{});
  }
  bool ends_with_nothing_left(int signal) {
    const absl::Time deadline = absl::Now() + kTooLong;
    while (!reaper_->end_rest(signal)) {
      if (absl::Now() > deadline) return false;
      poll(nullptr, 0, 1);
    }
    return true;
  }

  std::optional<ProcessReaper> reaper_;
  Pipe pipe_;
};

TEST_F(Reaping, EndingOfAWorkerIsReported) {
  EXPECT_EQ(await_end(start("exit 3")).exit_code(), 3);
  const Ending killed = await_end(start("kill -SEGV $$"));
  EXPECT_EQ(killed.signal, SIGSEGV);
  const ProcessReaper::Started runs = start("echo; exec sleep 1000");
  line();
  EXPECT_FALSE(reaper_->ending(runs.pid).has_value());
  reaper_->signal_group(runs.pid, SIGTERM);
  EXPECT_EQ(await_end(runs).signal, SIGTERM);
  EXPECT_TRUE(reaper_->end_rest(SIGTERM));
}

// The pid of the reaper: the parent of a worker.
pid_t reaper_of(pid_t worker) {
  std::ifstream status(absl::StrCat("/proc/", worker, "/stat"));
  std::string text;
  std::getline(status, text);
  pid_t parent = 0;
  char state = 0;
  std::istringstream(text.substr(text.rfind(')') + 1)) >> state >> parent;
  return parent;
}

TEST_F(Reaping, WithoutDescriptorsAWorkerDoesNotStartAndTheOthersGoOn) {
  const ProcessReaper::Started runs = start("echo; exec sleep 1000");
  line();
  const pid_t reaper = reaper_of(runs.pid);
  rlimit before = {};
  ASSERT_EQ(prlimit(reaper, RLIMIT_NOFILE, nullptr, &before), 0);
  rlimit none = before;
  // Enough to wait for its socket, and for no descriptor that it receives.
  none.rlim_cur = 4;
  ASSERT_EQ(prlimit(reaper, RLIMIT_NOFILE, &none, nullptr), 0);
  const absl::Status failed = try_start({"sh", "-c", "exit 0"}).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kResourceExhausted) << failed;
  EXPECT_NE(failed.message().find("RLIMIT_NOFILE"), std::string::npos) << failed;
  ASSERT_EQ(prlimit(reaper, RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(await_end(start("exit 3")).exit_code(), 3);
  EXPECT_FALSE(reaper_->ending(runs.pid).has_value());
  reaper_->signal_group(runs.pid, SIGTERM);
  EXPECT_EQ(await_end(runs).signal, SIGTERM);
}

TEST_F(Reaping, ArgumentsAndEnvironmentArriveUnchanged) {
  const std::string large(1 << 17, 'x');
  absl::StatusOr<ProcessReaper::Started> started =
      try_start({"sh", "-c", "echo \"$#$1$2.${#3}${EMPTY-unset}\"", "name", "", " a\tb", large.substr(1)});
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(line(), absl::StrCat("3 a\tb.", large.size() - 1));
}

TEST_F(Reaping, FileThatIsNotAProgramIsAnError) {
  const absl::Status status = try_start({"x"}, "/etc/passwd").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("cannot execute /etc/passwd"), absl::string_view::npos) << status;
}

TEST_F(Reaping, TooManyArgumentsAreAnError) {
  for (const size_t size : {size_t{8} << 20, size_t{17} << 20}) {
    const absl::Status status = try_start({"sh", std::string(size, 'x')}).status();
    EXPECT_NE(status.message().find("cannot execute /bin/sh"), absl::string_view::npos) << status;
  }
  EXPECT_EQ(await_end(start("exit 0")).exit_code(), 0);
}

TEST_F(Reaping, DaemonGetsOneSignalAndMayCleanUp) {
  const ProcessReaper::Started worker =
      start(detached("trap \"echo asked\" TERM; trap \"echo out; exit\" USR1") + " exit 0");
  await_end(worker);
  const pid_t daemon = std::stoi(line());
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(reaper_->end_rest(SIGTERM));
  EXPECT_EQ(line(), "asked");
  EXPECT_FALSE(reaper_->end_rest(SIGTERM));
  kill(daemon, SIGUSR1);
  EXPECT_EQ(line(), "out");
  EXPECT_TRUE(ends_with_nothing_left(SIGTERM));
  EXPECT_TRUE(all_end());
}

TEST_F(Reaping, ProcessSignalledWithItsGroupIsNotSignalledAgain) {
  // The signal ends the worker, which leaves a process in its group.
  const ProcessReaper::Started worker =
      start("sh -c 'trap \"echo asked\" TERM; echo; while :; do sleep 0.02; done' & wait");
  line();
  reaper_->signal_group(worker.pid, SIGTERM);
  await_end(worker);
  EXPECT_EQ(line(), "asked");
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(reaper_->end_rest(SIGTERM));
  EXPECT_TRUE(ends_with_nothing_left(SIGKILL));
  EXPECT_TRUE(all_end());
}

TEST_F(Reaping, GroupOfAnEndedWorkerIsSignalledToo) {
  const ProcessReaper::Started runs = start("exec sleep 1000");
  const ProcessReaper::Started ends =
      start("(trap 'echo asked; exit' TERM; echo; while :; do sleep 0.02; done) &");
  EXPECT_EQ(line(), "");
  EXPECT_EQ(await_end(ends).exit_code(), 0);
  reaper_->signal_group(ends.pid, SIGTERM);
  EXPECT_EQ(line(), "asked");
  reaper_->signal_group(runs.pid, SIGKILL);
  EXPECT_EQ(await_end(runs).signal, SIGKILL);
}

TEST_F(Reaping, StoppedDaemonIsEndedToo) {
  await_end(start("(setsid sh -c '(kill -STOP $$; echo) & wait' &); exit 0"));
  line();
  EXPECT_TRUE(ends_with_nothing_left(SIGTERM));
  EXPECT_TRUE(all_end());
}

TEST_F(Reaping, GenerationsThatIgnoreTheRequestAreKilled) {
  await_end(start(
      "(trap '' TERM; setsid sh -c 'setsid sh -c \"setsid sh -c \\\"echo; sleep 1000; :\\\"; :\"; :' &); "
      "exit 0"));
  line();
  EXPECT_FALSE(reaper_->end_rest(SIGTERM));
  EXPECT_TRUE(ends_with_nothing_left(SIGKILL));
  EXPECT_TRUE(all_end());
}

TEST_F(Reaping, RunningWorkerIsNotSignalledWithTheRest) {
  const ProcessReaper::Started worker = start("echo; exec sleep 1000");
  line();
  EXPECT_FALSE(reaper_->end_rest(SIGKILL));
  reaper_->signal_group(worker.pid, SIGINT);
  EXPECT_EQ(await_end(worker).signal, SIGINT);
}

TEST_F(Reaping, AllDieWithTheLauncher) {
  start("trap '' TERM; sleep 1000; true");
  start("trap '' TERM; " + detached("trap \"\" TERM") + " sleep 1000; true");
  start("setsid sh -c 'echo $$; sleep 1000; true'");
  line();
  line();
  reaper_.reset();
  EXPECT_TRUE(all_end());
}

TEST_F(Reaping, UnrelatedProcessesSurvive) {
  const pid_t stranger = fork();
  if (stranger == 0) {
    setsid();
    while (true) pause();
  }
  await_end(start(detached("true") + "exit 0"));
  EXPECT_FALSE(line().empty());
  EXPECT_TRUE(ends_with_nothing_left(SIGKILL));
  reaper_.reset();
  EXPECT_EQ(waitpid(stranger, nullptr, WNOHANG), 0);
  kill(stranger, SIGKILL);
  EXPECT_EQ(waitpid(stranger, nullptr, 0), stranger);
}

// Starts a worker and stops the reaper, its parent.
pid_t start_and_stop(ProcessReaper& reaper, const Pipe& pipe) {
  WorkerStart start{.command = {.path = "/bin/sh", .argv = {"sh", "-c", "echo $PPID; exec sleep 1000"}},
                    .environment = {"PATH=/usr/bin:/bin"},
                    .stdout_fd = pipe.write_end.get()};
  sigemptyset(&start.signal_mask);
  absl::StatusOr<ProcessReaper::Started> started = reaper.start_worker(start);
  EXPECT_TRUE(started.ok()) << started.status();
  std::string line;
  for (char byte; read_retrying(pipe.read_end.get(), &byte, 1) == 1 && byte != '\n';) line.push_back(byte);
  EXPECT_EQ(kill(std::stoi(line), SIGSTOP), 0) << line;
  return started->pid;
}

// Waits until all processes with the write end have ended. Returns whether they did.
bool reaches_its_end(Pipe& pipe) {
  pipe.write_end.reset();
  pollfd event{.fd = pipe.read_end.get(), .events = POLLIN};
  char byte;
  return poll(&event, 1, kTooLongMilliseconds) == 1 && read_retrying(pipe.read_end.get(), &byte, 1) == 0;
}

TEST(StoppedReaper, IsKilledWithWorkersAndLauncherWhenItDoesNotAnswer) {
  // The process that ends is a fork, in which objects of this one would be empty.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_EXIT(
      {
        Pipe pipe;
        pipe.read_end = Descriptor(ends[0]);
        pipe.write_end = Descriptor(ends[1]);
        ProcessReaper reaper = *ProcessReaper::start({.timeout = absl::Milliseconds(300)});
        const pid_t worker = start_and_stop(reaper, pipe);
        (void)reaper.ending(worker);
      },
      ::testing::KilledBySignal(SIGKILL), "parent process .* has not answered within 300ms");
  Pipe pipe{Descriptor(ends[0]), Descriptor(ends[1])};
  EXPECT_TRUE(reaches_its_end(pipe));
}

TEST(StoppedReaper, EndsWithItsOwner) {
  Pipe pipe = *make_pipe();
  {
    ProcessReaper reaper = *ProcessReaper::start();
    start_and_stop(reaper, pipe);
  }
  EXPECT_TRUE(reaches_its_end(pipe));
}

TEST(ReaperFolder, IsRemovedAfterTheWorkersHaveEnded) {
  std::string folder = absl::StrCat(::testing::TempDir(), "/folder_XXXXXX");
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  Pipe pipe = *make_pipe();
  {
    ProcessReaper reaper = *ProcessReaper::start({.folders = {"", folder}});
    start_and_stop(reaper, pipe);
    std::ofstream(folder + "/key") << "secret";
    EXPECT_TRUE(std::filesystem::exists(folder + "/key"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_TRUE(reaches_its_end(pipe));
}

TEST(ReaperDescriptors, ThoseThatAreNotCloseOnExecReachTheWorkers) {
  Pipe pipe = *make_pipe();
  Pipe inherited = *make_pipe();
  ASSERT_EQ(fcntl(inherited.read_end.get(), F_SETFD, 0), 0);
  ASSERT_TRUE(write_all(inherited.write_end.get(), "x"));
  ProcessReaper reaper = *ProcessReaper::start();
  const std::string script = absl::StrCat("head -c 1 /proc/self/fd/", inherited.read_end.get());
  WorkerStart start{.command = {.path = "/bin/sh", .argv = {"sh", "-c", script}},
                    .environment = {"PATH=/usr/bin:/bin"},
                    .stdout_fd = pipe.write_end.get()};
  sigemptyset(&start.signal_mask);
  ASSERT_TRUE(reaper.start_worker(start).ok());
  char byte = 0;
  EXPECT_EQ(read_retrying(pipe.read_end.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
}

TEST(ReaperMessages, OnlyWhatWasPackedIsUnpacked) {
  WorkerStart start{.command = {.path = "/bin/x", .argv = {"x", "", "y"}}, .environment = {"A=1"}};
  sigfillset(&start.signal_mask);
  start.ignore_sigpipe = true;
  const std::string packed = packed_start(start);
  const std::optional<WorkerStart> unpacked = unpacked_start(packed);
  ASSERT_TRUE(unpacked.has_value());
  EXPECT_EQ(unpacked->command.path, start.command.path);
  EXPECT_EQ(unpacked->command.argv, start.command.argv);
  EXPECT_EQ(unpacked->environment, start.environment);
  EXPECT_TRUE(unpacked->ignore_sigpipe);
  EXPECT_EQ(sigismember(&unpacked->signal_mask, SIGTERM), 1);
  for (size_t size = 0; size < packed.size(); ++size) {
    const std::optional<WorkerStart> cut = unpacked_start(packed.substr(0, size));
    EXPECT_TRUE(!cut || cut->environment.empty()) << size;
  }
}

}  // namespace
}  // namespace gradwire::tools
