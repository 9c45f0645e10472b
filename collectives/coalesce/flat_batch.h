#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/collectives/coalesced_call.h"
#include "gradwire/collectives/group/operations.h"

namespace gradwire::collectives {

// Small calls of one kind that run as one collective on one buffer: their data is copied together, and the
// results are copied out. Reductions are joined only if they have one dtype and one operation, broadcasts if
// they have one root. The tensors are plain and in the memory of the host. Used by one thread.
class FlatBatch {
 public:
  // A batch with this call. REQUIRES: takes(call)
  FlatBatch(RunContext& run, CoalescedCall call);

  // Whether the call is small enough, and of a kind that can be joined.
  static bool takes(const CoalescedCall& call);
  // Whether the call can be added to this batch. REQUIRES: takes(call)
  bool accepts(const CoalescedCall& call) const;
  // REQUIRES: accepts(call)
  void add(CoalescedCall call);

  const std::vector<CoalescedCall>& calls() const { return calls_; }
  // Runs the calls. Errors: as the backend's.
  absl::Status run();

 private:
  // Bytes that one call adds to a part of the buffer.
  static int64_t part_bytes(const CoalescedCall& call);
  absl::Status all_reduce(const at::Tensor& flat);
  absl::Status broadcast(const at::Tensor& flat);
  absl::Status all_gather(const at::Tensor& flat);
  absl::Status reduce_scatter(const at::Tensor& flat);

  RunContext& run_;
  std::vector<CoalescedCall> calls_;
  int64_t bytes_ = 0;
};

}  // namespace gradwire::collectives
