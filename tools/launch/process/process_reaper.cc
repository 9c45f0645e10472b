#include "gradwire/tools/launch/process/process_reaper.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/io/fd.h"
#include "gradwire/tools/launch/process/reaper_process.h"

namespace gradwire::tools {
namespace {

absl::Status execute_error(const WorkerStart& start, int error) {
  const char* hint = error == ENOEXEC ? " (a script needs a first line such as #!/bin/sh)" : "";
  return absl::UnavailableError(
      absl::StrCat(errno_status(absl::StrCat("cannot execute ", start.command.path), error).message(), hint));
}

// Whether the child ends in time. Does not reap it.
bool ends_within(pid_t child, absl::Duration time) {
  const absl::Time deadline = absl::Now() + time;
  const Descriptor watched(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  while (true) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == child)
      return true;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    // Without a pidfd, poll every 10 ms.
    pollfd event{.fd = watched.get(), .events = POLLIN};
    const absl::Duration at_most = watched.valid() ? left : std::min(left, absl::Milliseconds(10));
    poll(&event, 1, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(at_most, absl::Milliseconds(1)))));
  }
}

}  // namespace

// The socket pair is the lifeline in both directions. If the launcher dies, the reaper reads the end of the
// socket and kills everything. For this the child must close its copy of the launcher's end. If the reaper
// dies, the launcher's next call() fails.
absl::StatusOr<ProcessReaper> ProcessReaper::start(const ReaperOptions& options) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return errno_status("cannot create a socket", errno);
  Descriptor launcher_end(ends[0]);
  Descriptor reaper_end(ends[1]);
  const timeval at_most = absl::ToTimeval(options.timeout);
  if (setsockopt(launcher_end.get(), SOL_SOCKET, SO_RCVTIMEO, &at_most, sizeof(at_most)) != 0 ||
      setsockopt(launcher_end.get(), SOL_SOCKET, SO_SNDTIMEO, &at_most, sizeof(at_most)) != 0) {
    return errno_status("cannot set the timeout of a socket", errno);
  }
  const pid_t pid = fork();
  if (pid < 0) return errno_status("cannot start a process", errno);
  if (pid == 0) {
    launcher_end.reset();
    ReaperProcess(std::move(reaper_end), options.folders).run();
    _exit(0);
  }
  return ProcessReaper(std::move(launcher_end), pid, options.timeout);
}

ProcessReaper::ProcessReaper(ProcessReaper&& other) noexcept
    : socket_(std::move(other.socket_)), pid_(std::exchange(other.pid_, 0)), timeout_(other.timeout_) {}

ProcessReaper::~ProcessReaper() {
  // Shut the socket down: a forked process may have a copy of it.
  if (socket_.valid()) shutdown(socket_.get(), SHUT_RDWR);
  if (pid_ <= 0) return;
  // A stopped reaper would not notice the end of the socket.
  kill(pid_, SIGCONT);
  if (!ends_within(pid_, timeout_)) kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// The reaper has no standard streams of its own any more, so all three descriptors are sent with each
// request, also those that the worker inherits from the launcher. The reply has the pidfd of the worker, by
// which the launcher's loop notices its end.
absl::StatusOr<ProcessReaper::Started> ProcessReaper::start_worker(const WorkerStart& start) {
  const std::string packed = packed_start(start);
  if (packed.size() > kMaxPackedBytes) return execute_error(start, E2BIG);
  const auto or_own = [](int descriptor, int own) { return descriptor >= 0 ? descriptor : own; };
  std::vector<Descriptor> received;
  const ReaperReply reply =
      call({.kind = ReaperRequest::Kind::kStart, .packed_bytes = packed.size()}, packed,
           {or_own(start.stdin_fd, STDIN_FILENO), or_own(start.stdout_fd, STDOUT_FILENO),
            or_own(start.stderr_fd, STDERR_FILENO)},
           &received);
  if (reply.started.execute_error != 0) return execute_error(start, reply.started.execute_error);
  if (reply.started.pid == 0) return errno_status("cannot start a process", reply.started.fork_error);
  if (received.size() != 1) {
    signal_group(reply.started.pid, SIGKILL);
    return absl::UnavailableError(
        "cannot watch a worker's process: pidfd_open() failed; Linux 5.3 or later is required");
  }
  return Started{.pid = reply.started.pid, .pid_fd = std::move(received.front())};
}

std::optional<Ending> ProcessReaper::ending(pid_t worker) {
  std::optional<Ending> ending = call({.kind = ReaperRequest::Kind::kEnding, .worker = worker}).ending;
  if (ending) ending->time = absl::Now();
  return ending;
}

void ProcessReaper::signal_group(pid_t worker, int signal) {
  call({.kind = ReaperRequest::Kind::kSignalGroup, .worker = worker, .signal = signal});
}

bool ProcessReaper::end_rest(int signal) {
  return call({.kind = ReaperRequest::Kind::kEndRest, .signal = signal}).nothing_left;
}

// One request and one reply at a time. If the exchange fails, the launcher cannot watch or end the workers
// any more. They die with the reaper (PR_SET_PDEATHSIG), and the launcher ends as if it had been killed
// itself. A reaper that does not answer is killed first: otherwise it could go on after the launcher.
ReaperReply ProcessReaper::call(ReaperRequest request, const std::string& packed,
                                const std::vector<int>& descriptors, std::vector<Descriptor>* received) {
  ReaperReply reply;
  errno = 0;
  if (send_all(socket_.get(), &request, sizeof(request), descriptors) &&
      send_all(socket_.get(), packed.data(), packed.size()) &&
      receive_all(socket_.get(), &reply, sizeof(reply), received)) {
    return reply;
  }
  const bool timed_out = errno == EAGAIN || errno == EWOULDBLOCK;
  const std::string line =
      timed_out ? absl::StrCat("launch: the workers' parent process (", pid_, ") has not answered within ",
                               absl::FormatDuration(timeout_), "; it and the workers are killed\n")
                : "launch: the workers' parent process was killed\n";
  if (timed_out) kill(pid_, SIGKILL);
  write_all(STDERR_FILENO, line);
  raise(SIGKILL);
  // The first process of a container cannot kill itself with a signal.
  _exit(128 + SIGKILL);
}

}  // namespace gradwire::tools
