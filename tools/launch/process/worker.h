#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/launch/options/layout.h"
#include "gradwire/tools/launch/process/process_reaper.h"
#include "gradwire/tools/launch/process/worker_process.h"

namespace gradwire::tools {

// One worker process, the leader of a process group of its own, which it shares with what it starts.
//
// States: running; ended. Not thread-safe. The reaper, its parent, outlives it. The destructor kills a
// worker that runs, with its group.
class Worker {
 public:
  // Returns when the program runs. Unavailable, naming the program, if it cannot be executed.
  static absl::StatusOr<Worker> start(ProcessReaper& reaper, const WorkerPlace& place,
                                      const WorkerStart& start);

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

  // To the whole group, and SIGCONT after it, since a stopped process would not notice. Nothing once the
  // worker has ended: what is left of its group is the reaper's to end.
  void signal_group(int signal);

 private:
  Worker(ProcessReaper& reaper, WorkerPlace place, ProcessReaper::Started started)
      : reaper_(&reaper), place_(std::move(place)), pid_(started.pid), pid_fd_(std::move(started.pid_fd)) {}

  ProcessReaper* reaper_;
  WorkerPlace place_;
  pid_t pid_;  // 0: moved away
  Descriptor pid_fd_;
  bool ended_ = false;
  Ending ending_;
};

}  // namespace gradwire::tools
