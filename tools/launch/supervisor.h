#pragma once

#include <sys/types.h>

#include <functional>
#include <list>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "tools/launch/loop.h"
#include "tools/launch/worker.h"

namespace gradwire::tools {

// The failure that ended a job.
struct Failure {
  int exit_code = 1;
  // One line for the user: who, where and how.
  std::string description;
};

// Watches the workers of this node and decides when and how they are ended.
//
// States: running; stopping, after the first failure, a signal, or when workers that ended well left
// processes behind in their groups; killed, when the grace period was over; finished. It goes one way. While
// stopping it waits for the workers and all of their groups, so that what a worker started may clean up as
// well.
//
// On the loop's thread; loop and clock outlive it. Owns the workers.
class Supervisor {
 public:
  struct Callbacks {
    // A line for the user.
    std::function<void(const std::string& line)> say;
    // The first failure on this node, at once; not for workers that were asked to end.
    std::function<void(const Failure& failure)> failed;
  };

  Supervisor(EventLoop& loop, Clock& clock, absl::Duration grace_period, std::string host,
             Callbacks callbacks);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  absl::Status add(Worker worker);

  // Passes a signal on. Once more, a second or later after the first, it kills.
  void on_signal(int signal);
  // Ends the workers because the job failed elsewhere.
  void end_for(const Failure& failure);

  // Moves on by time. Returns whether everything has ended; else run the loop for at most next_wait().
  bool advance();
  absl::Duration next_wait() const;

  // The first failure, here or elsewhere; none while all is well or when a signal ended the job.
  const std::optional<Failure>& failure() const { return failure_; }
  // Once finished: the first failure's; 128 + the signal passed on, unless all workers ended with 0; 0.
  int exit_code() const;

 private:
  enum class State { kRunning, kStopping, kKilled };

  void on_end(Worker& worker);
  void stop(int signal);
  void kill_all();
  bool all_ended() const;
  bool all_gone();
  std::string describe(const Worker& worker) const;

  EventLoop& loop_;
  Clock& clock_;
  const absl::Duration grace_period_;
  const std::string host_;
  const Callbacks callbacks_;

  std::list<Worker> workers_;
  State state_ = State::kRunning;
  absl::Time deadline_ = absl::InfiniteFuture();  // of stopping, then of killed
  std::optional<Failure> failure_;
  int passed_on_ = 0;
  absl::Time passed_on_at_;
};

}  // namespace gradwire::tools
