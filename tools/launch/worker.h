#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/launch/fd.h"
#include "tools/launch/layout.h"
#include "tools/launch/program.h"

namespace gradwire::tools {

// How a process ended.
struct Ending {
  int signal = 0;  // 0: it exited with `code`
  int code = 0;
  absl::Time time;  // when the launcher saw it

  bool success() const { return signal == 0 && code == 0; }
  // As a shell has it: the code, or 128 + the signal.
  int exit_code() const { return signal == 0 ? code : 128 + signal; }
  // "exited with code 3", "was killed by signal SIGSEGV".
  std::string description() const;
};

// "SIGTERM", or "signal 64" for one without a name.
std::string signal_name(int signal);

// What a worker is started with; -1 means as the launcher has it.
struct WorkerStart {
  Command command;
  std::vector<std::string> environment;
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int registration_fd = -1;  // the guardian's
  sigset_t signal_mask;      // what the program starts with
  bool ignore_sigpipe = false;
};

// One worker process, the leader of a process group of its own, which it shares with what it starts.
//
// States: running; ended, but not yet reaped, so that the group's number stays reserved and a signal to it
// cannot meet a stranger; reaped. Not thread-safe. The destructor kills a group that is left.
class Worker {
 public:
  // Returns when the program runs. Unavailable, naming the program, if it cannot be executed. The launcher's
  // death kills the worker.
  static absl::StatusOr<Worker> start(const WorkerPlace& place, const WorkerStart& start);

  Worker(Worker&& other) noexcept;
  Worker& operator=(Worker&&) = delete;
  ~Worker();

  const WorkerPlace& place() const { return place_; }
  pid_t pid() const { return pid_; }
  // Readable when the worker has ended.
  int pid_fd() const { return pid_fd_.get(); }

  bool ended() const { return ended_; }
  const Ending& ending() const { return ending_; }
  // Learns how the worker ended. Call it when pid_fd() is readable.
  void note_end();

  // To the whole group, and SIGCONT after it, since a stopped process would not notice. Nothing if the group
  // is gone.
  void signal_group(int signal);
  // Whether the worker and all of its group have ended. Reaps the worker.
  bool group_gone();

 private:
  Worker(WorkerPlace place, pid_t pid, Fd pid_fd)
      : place_(std::move(place)), pid_(pid), pid_fd_(std::move(pid_fd)) {}
  void reap();

  WorkerPlace place_;
  pid_t pid_;
  Fd pid_fd_;
  bool ended_ = false;
  bool reaped_ = false;
  bool group_gone_ = false;
  Ending ending_;
};

}  // namespace gradwire::tools
