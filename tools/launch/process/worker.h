#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/launch/options/layout.h"
#include "gradwire/tools/launch/process/process_reaper.h"
#include "gradwire/tools/launch/process/worker_process.h"

namespace gradwire::tools {

// One worker process. It leads a process group of its own; its child processes are in the group, too.
//
// States: running; ended. Not thread-safe. The reaper, which is its parent, must outlive it. The destructor
// kills a running worker together with its group.
class Worker {
 public:
  // Starts a worker. Returns when the program runs. Unavailable, which names the program, if it cannot be
  // executed.
  static absl::StatusOr<Worker> start(ProcessReaper& reaper, const WorkerPlace& place,
                                      const WorkerStart& start);

  Worker(Worker&& other) noexcept;
  Worker& operator=(Worker&&) = delete;
  ~Worker();

  const WorkerPlace& place() const { return place_; }
  pid_t pid() const { return pid_; }
  // A pidfd; readable when the worker has ended.
  int pid_fd() const { return pid_fd_.get(); }

  bool ended() const { return ended_; }
  const Ending& ending() const { return ending_; }
  // Reads how the worker ended. Call it when pid_fd() is readable.
  void note_end();

  // Sends a signal, and then SIGCONT, to the whole group; a stopped process would not act on the signal.
  void signal_group(int signal);

 private:
  Worker(ProcessReaper& reaper, WorkerPlace place, ProcessReaper::Started started)
      : reaper_(&reaper), place_(std::move(place)), pid_(started.pid), pid_fd_(std::move(started.pid_fd)) {}

  ProcessReaper* reaper_;
  WorkerPlace place_;
  pid_t pid_;  // 0 if moved from.
  Descriptor pid_fd_;
  bool ended_ = false;
  Ending ending_;
};

}  // namespace gradwire::tools
