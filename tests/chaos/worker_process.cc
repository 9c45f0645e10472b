#include "gradwire/tests/chaos/worker_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/time/clock.h"

extern char** environ;

namespace chaos {

WorkerProcess::WorkerProcess(const std::vector<std::string>& command, const std::string& output_path) {
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) std::abort();
  to_ = to[1];
  from_ = from[0];
  ::fcntl(from_, F_SETFL, O_NONBLOCK);

  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 1, output_path.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  ::posix_spawn_file_actions_adddup2(&files, 1, 2);
  // The child expects the pipes at descriptors 3 and 4. First duplicate their ends to numbers of 10 or more.
  // Otherwise an end that is already 3 or 4 would be overwritten by the other one, or duplicated onto itself,
  // which would not clear its close-on-exec flag.
  const int child_output = ::fcntl(from[1], F_DUPFD_CLOEXEC, 10);
  const int child_input = ::fcntl(to[0], F_DUPFD_CLOEXEC, 10);
  ::posix_spawn_file_actions_adddup2(&files, child_output, 3);
  ::posix_spawn_file_actions_adddup2(&files, child_input, 4);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&attributes, 0);

  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  if (::posix_spawn(&pid_, argv[0], &files, &attributes, argv.data(), environ) != 0) {
    pid_ = -1;
    reaped_ = true;
  }
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  for (int descriptor : {to[0], from[1], child_output, child_input}) ::close(descriptor);
}

WorkerProcess::~WorkerProcess() {
  if (!reaped_) {
    ::kill(pid_, SIGKILL);
    (void)wait(absl::Seconds(30));
  }
  ::close(to_);
  ::close(from_);
}

void WorkerProcess::send_line(const std::string& line) {
  const std::string text = line + "\n";
  // The write fails if the worker was killed. That is not an error.
  (void)!::write(to_, text.data(), text.size());
}

std::optional<std::string> WorkerProcess::read_line() {
  while (true) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (output_closed_) return std::nullopt;
    char bytes[4096];
    const ssize_t count = ::read(from_, bytes, sizeof(bytes));
    if (count > 0) {
      buffer_.append(bytes, static_cast<std::size_t>(count));
    } else if (count == 0) {
      output_closed_ = true;
    } else if (errno != EINTR) {
      return std::nullopt;
    }
  }
}

void WorkerProcess::signal(int number) const {
  if (!reaped_) ::kill(pid_, number);
}

std::optional<int> WorkerProcess::wait(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (!reaped_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      reaped_ = true;
      exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    } else if (absl::Now() > end) {
      return std::nullopt;
    } else {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  return exit_;
}

bool WorkerProcess::group_exists() const { return pid_ > 0 && ::kill(-pid_, 0) == 0; }

}  // namespace chaos
