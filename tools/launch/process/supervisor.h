#pragma once

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/tools/launch/io/loop.h"
#include "gradwire/tools/launch/process/process_reaper.h"
#include "gradwire/tools/launch/process/worker.h"

namespace gradwire::tools {

// Watches the workers that this node has in one round of the job and decides when and how they are ended.
//
// States: running; stopping, after the first failure, a signal, or when workers that ended well left
// processes behind; killed, when the grace period was over; finished. It goes one way. While stopping it
// waits for the workers and, when those have ended, for all that they started, so that that may clean up as
// well: what has not got the signal with a worker's group, because it went to another, is asked to end then.
//
// On the loop's thread. Owns the workers.
class Supervisor {
 public:
  struct Callbacks {
    // A line for the user.
    std::function<void(const std::string& line)> say;
    // The first failure on this node, at once; not for workers that were asked to end.
    std::function<void(const Worker& worker)> failed;
  };

  // Outlive it.
  struct HostInfo {
    EventLoop& loop;
    Clock& clock;
    ProcessReaper& reaper;  // all workers' parent, and nobody else's
  };

  Supervisor(const HostInfo& host_info, absl::Duration grace_period, Callbacks callbacks);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  absl::Status add(Worker worker);

  // Passes a signal on to the workers and their groups. Once more, a second or later after the first, it
  // kills.
  void on_signal(int signal);
  // Ends the workers: the round is over.
  void end();

  // Moves on by time. Returns whether everything has ended; else run the loop for at most next_wait().
  bool advance();
  absl::Duration next_wait() const;

  // Whether all workers have ended with 0.
  bool succeeded() const;
  // The workers that have ended with 0, in the order of their ranks.
  std::vector<const Worker*> ended_well() const;
  // The workers that failed by themselves, the first one first.
  const std::vector<const Worker*>& failures() const { return failures_; }

 private:
  enum class State { kRunning, kStopping, kKilled };

  void on_end(Worker& worker);
  bool asked_for(const Ending& ending) const;
  void stop(int signal);
  void kill_all();
  bool all_ended() const;

  EventLoop& loop_;
  Clock& clock_;
  ProcessReaper& reaper_;
  const absl::Duration grace_period_;
  const Callbacks callbacks_;

  std::list<Worker> workers_;
  State state_ = State::kRunning;
  absl::Time deadline_ = absl::InfiniteFuture();  // of stopping, then of killed
  std::vector<const Worker*> failures_;
  int passed_on_ = 0;
  absl::Time passed_on_at_;
};

}  // namespace gradwire::tools
