#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/collectives/flight/operation.h"
#include "gradwire/collectives/group/operation_runner.h"
#include "gradwire/collectives/streams/stream_point.h"
#include "gradwire/collectives/work.h"

namespace gradwire::collectives {

// One message between two members of a group, from its beginning to its end. It does not keep the group
// alive, because destroying the group may be what completes the message. Used by one thread at a time.
class Transfer {
 public:
  // Begin a send or a receive. `tensor` has been checked. `dst` and `src` are ranks of the world, for the
  // flight record; `to` and `from` are ranks of the group; -1 is any rank. Throws Error: FailedPrecondition
  // if the runner has been closed.
  static Transfer send(OperationRunner& runner, at::Tensor tensor, int dst, int to, int tag);
  static Transfer receive(OperationRunner& runner, at::Tensor tensor, int src, int from, int tag);

  // Send or receive a message without a Transfer, if that ends at once or, for a receive, within some
  // microseconds, for a caller that would wait. Most short messages between ranks of one host do, and a
  // Transfer would take longer than such a message. Return nullopt if it does not; then nothing has happened.
  // Otherwise try_send() returns how it ended, and try_receive() returns and throws what wait() would.
  static std::optional<absl::Status> try_send(OperationRunner& runner, const at::Tensor& tensor, int dst,
                                              int to, int tag);
  static std::optional<int> try_receive(OperationRunner& runner, const at::Tensor& tensor, int src, int from,
                                        int tag);

  // Waits until the message has been sent or received. Returns the sender's rank in the world for a receive,
  // -1 for a send. Throws Error.
  int wait() const;
  // Returns a handle that ends when the message has been sent or received.
  std::shared_ptr<Work> as_work() &&;

 private:
  Transfer(OperationRunner& runner, const OperationRecord& record, CoarseTime now);
  // Records the end. Copies a received tensor from the temporary one to the caller's, in the calling thread's
  // current stream of the tensor's device. Returns the sender's rank in the world, or the error with the
  // operation and the group in its message.
  absl::StatusOr<int> finish(const absl::StatusOr<int>& result) const;
  // As finish(), but copies in a stream of its own; `copy` becomes the end of the copy.
  absl::StatusOr<int> finish_beside(const absl::StatusOr<int>& result, EnqueuedPoint& copy) const;
  // Whether finish() copies to an accelerator.
  bool on_device() const { return target_.defined() && !target_.is_cpu(); }

  OperationRecord record_;
  uint64_t entry_;
  CoarseTime began_;
  // The backend's result: the sender's rank in the group for a receive, -1 for a send. result_ is set if the
  // send ended at once; otherwise ended_ is valid.
  std::optional<absl::StatusOr<int>> result_;
  Future<int> ended_;
  std::unique_ptr<Enqueued> enqueued_;
  // The temporary tensor that the backend receives into, and the caller's tensor. Both are undefined if the
  // backend receives into the caller's tensor.
  at::Tensor staged_;
  at::Tensor target_;
  // With a temporary tensor: the caller's work on target_'s device before the call.
  StreamPoint called_;
  std::shared_ptr<GroupIdentity> identity_;
};

}  // namespace gradwire::collectives
