#pragma once

#include <exception>
#include <memory>

#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/collectives/group_backend.h"

namespace gradwire::collectives {

// A handle of an operation that an _async function, isend or irecv has begun. Dropping the handle neither
// cancels the operation nor waits for it. The caller must not change or free the tensors before the operation
// has ended. Thread-safe.
class Work {
 public:
  // `ended`: done when the operation has run, or is enqueued on a device. Its value is the sender's rank in
  // the world for a receive, -1 for other operations.
  explicit Work(Future<int> ended, std::shared_ptr<Enqueued> enqueued = nullptr)
      : ended_(std::move(ended)), enqueued_(std::move(enqueued)) {}

  // Waits until the operation has ended; throws its Error. For an operation on a device: waits until it is
  // enqueued, and makes the calling thread's current stream wait for it.
  void wait() const;
  // As wait(), but for at most `timeout`; returns false, without an error, if the operation has not ended
  // then.
  bool wait_for(absl::Duration timeout) const;
  // Whether the operation has ended, with success or an error (on a device: is enqueued). True after wait().
  bool is_completed() const { return ended_.done(); }
  // Whether the operation has ended with success.
  bool is_success() const;
  // The operation's Error; nullptr while it runs, and after success.
  std::exception_ptr exception() const;
  // The sender's rank in the world, for a receive. Waits until the operation has ended. Throws its Error, or
  // FailedPrecondition if the operation is not a receive.
  int source_rank() const;
  // The future that the constructor was given. Callbacks of a collective run on the thread that ran the
  // collective, and must not wait for operations of the same group.
  Future<int> future() const { return ended_; }

 private:
  const Future<int> ended_;
  const std::shared_ptr<Enqueued> enqueued_;
};

}  // namespace gradwire::collectives
