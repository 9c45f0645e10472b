#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/tools/launch/process/program.h"

namespace gradwire::tools {

// Parameters of a new worker. A descriptor of -1 means the launcher's own.
struct WorkerStart {
  Command command;
  std::vector<std::string> environment;
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  sigset_t signal_mask;  // The mask that the program starts with.
  bool ignore_sigpipe = false;
};

// How a process ended.
struct Ending {
  int signal = 0;  // 0 if it exited with `code`.
  int code = 0;
  absl::Time time;  // When the launcher noticed it.

  bool success() const { return signal == 0 && code == 0; }
  // The exit code as in a shell: the code, or 128 + the signal.
  int exit_code() const { return signal == 0 ? code : 128 + signal; }
};

// "SIGTERM", or "signal 64" for one without a name.
std::string signal_name(int signal);

// Result of start_process().
struct StartedProcess {
  pid_t pid = 0;  // 0 if one of these errors (errno values) occurred.
  int fork_error = 0;
  int execute_error = 0;
};

// Starts a process that leads a group of its own and is killed when the caller's thread ends. Returns when
// the program runs.
StartedProcess start_process(const WorkerStart& start);

}  // namespace gradwire::tools
