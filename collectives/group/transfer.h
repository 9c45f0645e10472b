#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "gradwire/base/future.h"
#include "gradwire/collectives/flight/operation.h"
#include "gradwire/collectives/group/operation_runner.h"
#include "gradwire/collectives/work.h"

namespace gradwire::collectives {

// A message between two members of a group, from its beginning to its end. Holds what it needs, not the
// group, whose end may complete it. Used by one thread at a time.
class Transfer {
 public:
  // `tensor` has been checked. `dst`, `src`: ranks of the world, for the flight record; `to`, `from`: of the
  // group, -1 any. `waits`: the caller does so at once. Throws Error: FailedPrecondition after the runner was
  // closed.
  static Transfer send(OperationRunner& runner, at::Tensor tensor, int dst, int to, int tag);
  static Transfer receive(OperationRunner& runner, at::Tensor tensor, int src, int from, int tag, bool waits);

  // Returns at its end the sender's rank in the world, -1 of a send. Throws Error.
  int wait() const;
  std::shared_ptr<Work> as_work() &&;

 private:
  Transfer(OperationRunner& runner, const OperationRecord& record, CoarseTime now);
  // The rank of the world, or the error with its names; brings the tensor where it belongs.
  absl::StatusOr<int> finish(const absl::StatusOr<int>& result) const;

  OperationRecord record_;
  uint64_t entry_;
  // As the backend has it, a rank of the group; -1 of a send: when it ended at once, and else.
  std::optional<absl::StatusOr<int>> result_;
  Future<int> ended_;
  std::unique_ptr<Enqueued> enqueued_;
  // Where a received tensor goes that was received elsewhere; else undefined.
  at::Tensor staged_;
  at::Tensor target_;
  std::shared_ptr<GroupIdentity> identity_;
};

}  // namespace gradwire::collectives
