#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/tools/launch/process/program.h"

namespace gradwire::tools {

// What a worker is started with; -1 means as the launcher has it.
struct WorkerStart {
  Command command;
  std::vector<std::string> environment;
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  sigset_t signal_mask;  // what the program starts with
  bool ignore_sigpipe = false;
};

// How a process ended.
struct Ending {
  int signal = 0;  // 0: it exited with `code`
  int code = 0;
  absl::Time time;  // when the launcher saw it

  bool success() const { return signal == 0 && code == 0; }
  // As a shell has it: the code, or 128 + the signal.
  int exit_code() const { return signal == 0 ? code : 128 + signal; }
};

// "SIGTERM", or "signal 64" for one without a name.
std::string signal_name(int signal);

struct StartedProcess {
  pid_t pid = 0;  // 0: there is none, because of one of these, as errno has them
  int fork_error = 0;
  int execute_error = 0;
};

// Starts a process that leads a group of its own and dies with the caller's thread; returns when the program
// runs.
StartedProcess start_process(const WorkerStart& start);

}  // namespace gradwire::tools
