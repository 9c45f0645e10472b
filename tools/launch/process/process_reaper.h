#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/launch/process/reaper_messages.h"
#include "gradwire/tools/launch/process/worker_process.h"

namespace gradwire::tools {

// A process between the launcher and its workers, their parent: it starts them, and nothing below it escapes
// it, not even what has gone to a session of its own. It outlives a launcher killed with SIGKILL by the
// moment that it takes to kill all of that.
//
// When it is killed itself the workers die with it, and so does the launcher, by SIGKILL: whoever kills the
// parent of a worker means the launcher. What workers have started may live on then, and only then. One that
// does not answer, because it was stopped, is killed after `timeout`, with the same consequences.
//
// Not thread-safe; one per process. Owns the reaper process: the destructor kills what is left below it and
// waits for its end.
class ProcessReaper {
 public:
  struct Started {
    pid_t pid;
    Descriptor pid_fd;
  };

  // More than a request takes: the slowest executes a program from a remote file system.
  static constexpr absl::Duration kTimeout = absl::Seconds(60);

  // Forks; call it while the process has one thread, since the child runs more than exec. `timeout`, which
  // is positive, is how long one answer may take, and the reaper's end. Unavailable if the system refuses.
  static absl::StatusOr<ProcessReaper> start(absl::Duration timeout = kTimeout);

  ProcessReaper(ProcessReaper&& other) noexcept;
  ProcessReaper& operator=(ProcessReaper&&) = delete;
  ~ProcessReaper();

  // Starts a worker, the leader of a process group of its own; returns when the program runs. Unavailable,
  // naming the program, if it cannot be executed.
  absl::StatusOr<Started> start_worker(const WorkerStart& start);

  // How a worker ended; nothing while it runs. Once it has told that, it knows the worker no more.
  std::optional<Ending> ending(pid_t worker);

  // To a worker and its whole group, and SIGCONT after it; nothing when the worker has ended.
  void signal_group(pid_t worker, int signal);

  // Asks what ended workers have left to end, with SIGTERM, or kills it: processes without a living parent
  // below this one. Each is asked once, and only by that or by signal_group(). When one ends what it leaves
  // comes up in its place, so call it again until nothing is left, which it returns: there is no process
  // below this one then, but for those of another user, which cannot be ended.
  bool end_rest(int signal);

 private:
  ProcessReaper(Descriptor socket, pid_t pid, absl::Duration timeout)
      : socket_(std::move(socket)), pid_(pid), timeout_(timeout) {}

  ReaperReply ask(ReaperRequest request, const std::string& packed = "",
                  const std::vector<int>& descriptors = {}, std::vector<Descriptor>* received = nullptr);

  Descriptor socket_;
  pid_t pid_;
  const absl::Duration timeout_;
};

}  // namespace gradwire::tools
