#include "gradwire/tools/launch/process/worker_process.h"

#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "gradwire/base/fork.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

// Runs in the child: sets up the process and executes the program.
[[noreturn]] void become_worker(const WorkerStart& start, pid_t parent, int error_pipe, char* const* argv,
                                char* const* environment) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before prctl(); then the kernel would never send the signal.
  if (getppid() != parent) _exit(1);
  if (start.stdin_fd >= 0) dup2(start.stdin_fd, STDIN_FILENO);
  if (start.stdout_fd >= 0) dup2(start.stdout_fd, STDOUT_FILENO);
  if (start.stderr_fd >= 0) dup2(start.stderr_fd, STDERR_FILENO);
  signal(SIGPIPE, start.ignore_sigpipe ? SIG_IGN : SIG_DFL);
  sigprocmask(SIG_SETMASK, &start.signal_mask, nullptr);
  execve(start.command.path.c_str(), argv, environment);
  const int error = errno;
  write_all(error_pipe, absl::string_view(reinterpret_cast<const char*>(&error), sizeof(error)));
  _exit(127);
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

StartedProcess start_process(const WorkerStart& start) {
  // Problem: fork() succeeds even if the program cannot be executed, and that must not be mistaken for a
  // program that fails. The child reports a failed execve() through this pipe. If the pipe closes without
  // data, the program runs, because both ends are close-on-exec.
  absl::StatusOr<Pipe> error_pipe = make_pipe();
  if (!error_pipe.ok()) return {.fork_error = errno};
  const std::vector<char*> argv = pointers(start.command.argv);
  const std::vector<char*> environment = pointers(start.environment);
  const pid_t parent = getpid();
  const pid_t pid = fork_with_objects();
  if (pid < 0) return {.fork_error = errno};
  if (pid == 0) become_worker(start, parent, error_pipe->write_end.get(), argv.data(), environment.data());

  // Both parent and child set the group, so that it exists whichever of the two runs first.
  setpgid(pid, pid);
  error_pipe->write_end.reset();
  int error = 0;
  if (read_retrying(error_pipe->read_end.get(), &error, sizeof(error)) != sizeof(error)) return {.pid = pid};
  waitpid(pid, nullptr, 0);
  return {.execute_error = error};
}

}  // namespace gradwire::tools
