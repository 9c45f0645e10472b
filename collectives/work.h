#pragma once

#include <exception>
#include <memory>

#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/collectives/group_backend.h"

namespace gradwire::collectives {

// An operation that was begun with an _async function, or isend or irecv. Dropping it neither cancels nor
// waits; the tensors stay the operation's until it has ended. Thread-safe.
class Work {
 public:
  // `ended`: done when the operation has run, or is enqueued on a device; its value is the rank of the world
  // that a receive's message came from, else -1.
  explicit Work(Future<int> ended, std::shared_ptr<Enqueued> enqueued = nullptr)
      : ended_(std::move(ended)), enqueued_(std::move(enqueued)) {}

  // Waits; throws the operation's Error. On a device: returns when the operation is enqueued and orders the
  // calling thread's current stream behind it.
  void wait() const;
  // The same, for at most `timeout`; false, without an error, when it has not ended by then.
  bool wait_for(absl::Duration timeout) const;
  // Whether it has ended, well or not (on a device: is enqueued). True after wait().
  bool is_completed() const { return ended_.done(); }
  // Whether it has ended well.
  bool is_success() const;
  // Its Error, or nullptr while it runs and when it ended well.
  std::exception_ptr exception() const;
  // The rank of the world whose message a receive got. Waits; throws Error: the operation's, or
  // FailedPrecondition when it is no receive.
  int source_rank() const;
  // The future that the constructor was given. A callback of a collective runs on the thread that ran it, and
  // must not wait for operations of the same group.
  Future<int> future() const { return ended_; }

 private:
  const Future<int> ended_;
  const std::shared_ptr<Enqueued> enqueued_;
};

}  // namespace gradwire::collectives
