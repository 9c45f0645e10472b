#include "tools/launch/worker.h"

#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/error.h"

namespace gradwire::tools {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

// The child's side. Between fork and exec only what is safe in a signal handler is called: the launcher has
// threads.
[[noreturn]] void become_worker(const WorkerStart& start, pid_t launcher, int error_pipe, char* const* argv,
                                char* const* environment) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The launcher may have died before the line above; then nobody would send the signal.
  if (getppid() != launcher) _exit(1);
  const pid_t self = getpid();
  if (start.registration_fd >= 0)
    write_all(start.registration_fd, reinterpret_cast<const char*>(&self), sizeof(self));
  if (start.stdin_fd >= 0) dup2(start.stdin_fd, STDIN_FILENO);
  if (start.stdout_fd >= 0) dup2(start.stdout_fd, STDOUT_FILENO);
  if (start.stderr_fd >= 0) dup2(start.stderr_fd, STDERR_FILENO);
  signal(SIGPIPE, start.ignore_sigpipe ? SIG_IGN : SIG_DFL);
  sigprocmask(SIG_SETMASK, &start.signal_mask, nullptr);
  execve(start.command.path.c_str(), argv, environment);
  const int error = errno;
  write_all(error_pipe, reinterpret_cast<const char*>(&error), sizeof(error));
  _exit(127);
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

std::string Ending::description() const {
  if (signal != 0) return absl::StrCat("was killed by signal ", signal_name(signal));
  return absl::StrCat("exited with code ", code);
}

absl::StatusOr<Worker> Worker::start(const WorkerPlace& place, const WorkerStart& start) {
  GRADWIRE_ASSIGN_OR_RETURN(Pipe error_pipe, make_pipe());
  const std::vector<char*> argv = pointers(start.command.argv);
  const std::vector<char*> environment = pointers(start.environment);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) return errno_status("cannot start a process", errno);
  if (pid == 0) become_worker(start, launcher, error_pipe.write_end.get(), argv.data(), environment.data());

  // Here too, so that the group exists whichever of the two runs first.
  setpgid(pid, pid);
  error_pipe.write_end.reset();
  int error = 0;
  if (read_retrying(error_pipe.read_end.get(), &error, sizeof(error)) == sizeof(error)) {
    waitpid(pid, nullptr, 0);
    const char* hint = error == ENOEXEC ? " (a script needs a first line such as #!/bin/sh)" : "";
    return absl::UnavailableError(absl::StrCat(
        errno_status(absl::StrCat("cannot execute ", start.command.path), error).message(), hint));
  }
  // glibc 2.36 declares pidfd_open for C alone.
  Fd pid_fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  Worker worker(place, pid, std::move(pid_fd));
  if (!worker.pid_fd_.valid())
    return errno_status("cannot watch a process (Linux 5.3 or later is needed)", errno);
  return worker;
}

Worker::Worker(Worker&& other) noexcept
    : place_(std::move(other.place_)),
      pid_(std::exchange(other.pid_, 0)),
      pid_fd_(std::move(other.pid_fd_)),
      ended_(other.ended_),
      reaped_(other.reaped_),
      group_gone_(other.group_gone_),
      ending_(other.ending_) {}

Worker::~Worker() {
  if (pid_ == 0) return;
  signal_group(SIGKILL);
  if (reaped_) return;
  // A process that hangs in the kernel cannot be killed; it is not waited for without end.
  pollfd end{.fd = pid_fd_.get(), .events = POLLIN};
  constexpr int kPatienceMilliseconds = 5000;
  if (!pid_fd_.valid() || poll(&end, 1, kPatienceMilliseconds) > 0) reap();
}

void Worker::note_end() {
  siginfo_t info{};
  if (ended_ || waitid(P_PID, pid_, &info, WEXITED | WNOWAIT | WNOHANG) != 0 || info.si_pid == 0) return;
  ended_ = true;
  ending_.time = absl::Now();
  (info.si_code == CLD_EXITED ? ending_.code : ending_.signal) = info.si_status;
}

void Worker::signal_group(int signal) {
  if (group_gone_) return;
  if (kill(-pid_, signal) != 0 && errno == ESRCH) return;
  if (signal != SIGKILL) kill(-pid_, SIGCONT);
}

bool Worker::group_gone() {
  if (!ended_) return false;
  // The worker itself, not yet reaped, would count as a member. Once it is reaped the number stays taken as
  // long as the group has a member, and nothing is sent to it after it was found empty.
  reap();
  // What the worker left behind has become the launcher's child, where the launcher is a subreaper.
  while (!group_gone_ && waitpid(-pid_, nullptr, WNOHANG) > 0) {
  }
  if (!group_gone_) group_gone_ = kill(-pid_, 0) != 0 && errno == ESRCH;
  return group_gone_;
}

void Worker::reap() {
  if (reaped_) return;
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
}

}  // namespace gradwire::tools
