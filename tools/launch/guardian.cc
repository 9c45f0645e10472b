#include "tools/launch/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <utility>
#include <vector>

namespace gradwire::tools {
namespace {

constexpr pid_t kForgetAll = 0;

[[noreturn]] void guard(int pipe) {
  // A group of its own: a signal to the launcher's group, SIGKILL included, leaves the guardian to do its
  // work.
  setpgid(0, 0);
  prctl(PR_SET_NAME, "launch-guardian");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // Whoever reads the launcher's output to its end must not wait for the guardian.
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int stream = 0; stream <= 2; ++stream) dup2(null, stream);

  std::vector<pid_t> groups;
  pid_t group = 0;
  // Writes of one pid are smaller than PIPE_BUF: they arrive whole.
  while (read_retrying(pipe, &group, sizeof(group)) == sizeof(group)) {
    if (group == kForgetAll) {
      groups.clear();
    } else {
      groups.push_back(group);
    }
  }
  for (pid_t each : groups) kill(-each, SIGKILL);
  _exit(0);
}

}  // namespace

absl::StatusOr<Guardian> Guardian::start() {
  absl::StatusOr<Pipe> pipe = make_pipe();
  if (!pipe.ok()) return pipe.status();
  const pid_t pid = fork();
  if (pid < 0) return errno_status("cannot start a process", errno);
  if (pid == 0) {
    pipe->write_end.reset();
    guard(pipe->read_end.get());
  }
  return Guardian(std::move(pipe->write_end), pid);
}

Guardian::Guardian(Guardian&& other) noexcept
    : write_end_(std::move(other.write_end_)), pid_(std::exchange(other.pid_, 0)) {}

Guardian::~Guardian() {
  write_end_.reset();
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

void Guardian::release() {
  write_all(write_end_.get(), reinterpret_cast<const char*>(&kForgetAll), sizeof(kForgetAll));
}

}  // namespace gradwire::tools
