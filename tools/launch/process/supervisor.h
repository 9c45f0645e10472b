#pragma once

#include <sys/types.h>

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/launch/io/loop.h"
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

// Watches the workers of this node in one round of the job, and decides when and how they are ended.
//
// States, in this order: running; stopping, after the first failure, a signal, or when workers that ended
// with 0 left processes behind; killed, after the grace period; finished. While stopping, it first waits for
// the workers, then for the processes that they started, so that these can clean up too. A process that did
// not get the signal with its worker's group, because it is in another group, gets SIGTERM then.
//
// Use on the loop's thread only. Owns the workers.
class Supervisor {
 public:
  struct Callbacks {
    // Prints a line for the user.
    std::function<void(const std::string& line)> print;
    // Called at the first failure on this node, but not for a worker that was ended by the launcher.
    std::function<void(const Worker& worker)> failed;
  };

  // The parts of the launcher that the supervisor uses. They must outlive it.
  struct HostInfo {
    FdLoop& loop;
    Clock& clock;
    ProcessReaper& reaper;  // The parent of all workers, and of no other process.
  };

  Supervisor(const HostInfo& host_info, absl::Duration grace_period, Callbacks callbacks);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  absl::Status add(Worker worker);

  // Forwards a signal to the workers and their groups. A further signal, a second or more after the first,
  // kills them.
  void on_signal(int signal);
  // Ends the workers: the round is over.
  void end();

  // Advances the state. Returns true if everything has ended; else run the loop for at most next_wait() and
  // call again.
  bool advance();
  absl::Duration next_wait() const;

  // Whether all workers have ended with 0.
  bool succeeded() const;
  // The workers that have ended with 0, in the order of their ranks.
  std::vector<const Worker*> ended_well() const;
  // The workers that failed by themselves, in the order of their ends.
  const std::vector<const Worker*>& failures() const { return failures_; }

 private:
  enum class State { kRunning, kStopping, kKilled };

  void on_end(Worker& worker);
  bool was_requested(const Ending& ending) const;
  void stop(int signal);
  void kill_all();
  bool all_ended() const;

  FdLoop& loop_;
  Clock& clock_;
  ProcessReaper& reaper_;
  const absl::Duration grace_period_;
  const Callbacks callbacks_;

  std::list<Worker> workers_;
  State state_ = State::kRunning;
  absl::Time deadline_ = absl::InfiniteFuture();  // Deadline of the state kStopping or kKilled.
  std::vector<const Worker*> failures_;
  int forwarded_ = 0;
  absl::Time forwarded_at_;
};

}  // namespace gradwire::tools
