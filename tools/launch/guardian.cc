#include "tools/launch/guardian.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tools/launch/guardian_process.h"

namespace gradwire::tools {
namespace {

absl::Status execute_error(const WorkerStart& start, int error) {
  const char* hint = error == ENOEXEC ? " (a script needs a first line such as #!/bin/sh)" : "";
  return absl::UnavailableError(
      absl::StrCat(errno_status(absl::StrCat("cannot execute ", start.command.path), error).message(), hint));
}

}  // namespace

absl::StatusOr<Guardian> Guardian::start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return errno_status("cannot make a socket", errno);
  Fd launchers(ends[0]);
  Fd guardians(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return errno_status("cannot start a process", errno);
  if (pid == 0) {
    launchers.reset();
    GuardianProcess(std::move(guardians)).run();
    _exit(0);
  }
  return Guardian(std::move(launchers), pid);
}

Guardian::Guardian(Guardian&& other) noexcept
    : socket_(std::move(other.socket_)), pid_(std::exchange(other.pid_, 0)) {}

Guardian::~Guardian() {
  // Whoever else may have the socket by a fork.
  if (socket_.valid()) shutdown(socket_.get(), SHUT_RDWR);
  while (pid_ > 0 && waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<Guardian::Started> Guardian::start_worker(const WorkerStart& start) {
  const std::string packed = packed_start(start);
  if (packed.size() > kMaxPackedBytes) return execute_error(start, E2BIG);
  const auto or_own = [](int descriptor, int own) { return descriptor >= 0 ? descriptor : own; };
  std::vector<Fd> received;
  const GuardianReply reply =
      ask({.kind = GuardianRequest::Kind::kStart, .packed_bytes = packed.size()}, packed,
          {or_own(start.stdin_fd, STDIN_FILENO), or_own(start.stdout_fd, STDOUT_FILENO),
           or_own(start.stderr_fd, STDERR_FILENO)},
          &received);
  if (reply.started.execute_error != 0) return execute_error(start, reply.started.execute_error);
  if (reply.started.pid == 0) return errno_status("cannot start a process", reply.started.fork_error);
  if (received.size() != 1) {
    signal_group(reply.started.pid, SIGKILL);
    return absl::UnavailableError("cannot watch a process (Linux 5.3 or later is needed)");
  }
  return Started{.pid = reply.started.pid, .pid_fd = std::move(received.front())};
}

std::optional<Ending> Guardian::ending(pid_t worker) {
  const GuardianReply reply = ask({.kind = GuardianRequest::Kind::kEnding, .worker = worker});
  if (!reply.ended) return std::nullopt;
  return Ending{.signal = reply.signal, .code = reply.code, .time = absl::Now()};
}

void Guardian::signal_group(pid_t worker, int signal) {
  ask({.kind = GuardianRequest::Kind::kSignalGroup, .worker = worker, .signal = signal});
}

bool Guardian::end_rest(int signal) {
  return ask({.kind = GuardianRequest::Kind::kEndRest, .signal = signal}).nothing_left;
}

GuardianReply Guardian::ask(GuardianRequest request, const std::string& packed,
                            const std::vector<int>& descriptors, std::vector<Fd>* received) {
  GuardianReply reply;
  if (send_all(socket_.get(), &request, sizeof(request), descriptors) &&
      send_all(socket_.get(), packed.data(), packed.size()) &&
      receive_all(socket_.get(), &reply, sizeof(reply), received)) {
    return reply;
  }
  constexpr char kLine[] = "launch: the workers' parent process was killed\n";
  write_all(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  raise(SIGKILL);
  // The first process of a container cannot kill itself.
  _exit(128 + SIGKILL);
}

}  // namespace gradwire::tools
