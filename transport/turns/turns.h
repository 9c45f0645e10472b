#pragma once

#include <deque>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire::transport {

// Shares the thread of an event loop between its connections, so that a peer that sends much does not delay
// the others.
//
// The loop works in rounds. In each round it first serves what has arrived. A handler does one unit of work
// (it handles one message, or accepts one connection) without a question. Before each further unit it asks
// spent(). When the time of the round is over, it defers the rest. The loop runs deferred tasks at the end of
// a round: at least one, and others until the time of the round is over.
//
// So a message that arrives waits for the time of one round, and for one unit of each other connection that
// is served in that round. It does not wait for the work that others have deferred, however much that is.
//
// A state machine that reads a clock. Used only by the loop's driver.
class Turns {
 public:
  using Task = absl::AnyInvocable<void()>;

  // The time of a round. A message between two processes of a host takes about as long.
  static constexpr absl::Duration kRound = absl::Microseconds(40);

  // The clock must outlive this object.
  explicit Turns(const Clock& clock) : clock_(clock) {}

  // A new round begins.
  void begin_round() { begun_ = false; }
  // Whether the time of this round is over. The time begins with the first call of spent() or now() in the
  // round: a round in which nobody asks reads no clock.
  bool spent() { return now() - begin_ >= kRound; }
  absl::Time now();

  // Runs `task` at the end of a later round.
  void defer(Task task) { deferred_.push_back(std::move(task)); }
  // Whether deferred tasks wait.
  bool waiting() const { return !deferred_.empty(); }
  // Ends a round. Runs the task that has waited longest, and others until the time of the round is over. A
  // task that is deferred meanwhile waits for the next round. Returns whether a task has run.
  bool run_deferred();
  // Drops the deferred tasks.
  void clear();

 private:
  const Clock& clock_;
  bool begun_ = false;
  absl::Time begin_;
  std::deque<Task> deferred_;
};

}  // namespace gradwire::transport
