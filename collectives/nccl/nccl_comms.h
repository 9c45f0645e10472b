#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"

namespace gradwire::collectives::nccl {

// A stream of a device that nobody else has meanwhile. It is handed on, never destroyed: the allocator of
// libtorch may still wait for what was in it.
class StreamLease {
 public:
  explicit StreamLease(c10::DeviceIndex device);
  ~StreamLease();
  StreamLease(const StreamLease&) = delete;
  StreamLease& operator=(const StreamLease&) = delete;

  c10::cuda::CUDAStream stream() const { return stream_; }

 private:
  const c10::cuda::CUDAStream stream_;
};

// How long a wait for NCCL may take.
struct WaitLimit {
  absl::Time deadline = absl::InfiniteFuture();
  // Asked now and then; its error ends the wait.
  std::function<absl::Status()> interrupted;
};

// A communicator's ranks that are on this process's devices, with a stream for each. Non-blocking: no call of
// NCCL takes long, all waits are here, so that abort() gets its turn from any thread at any time.
// Thread-safe.
class NcclComms {
 public:
  using Call = absl::FunctionRef<ncclResult_t(std::size_t device, ncclComm_t comm, cudaStream_t stream)>;

  // Ranks first, first + 1, ... of `total`, one for each device; waits for the other ranks. DeadlineExceeded;
  // NCCL's errors.
  static absl::StatusOr<std::shared_ptr<NcclComms>> create(const ncclUniqueId& id, int first, int total,
                                                           const std::vector<c10::Device>& devices,
                                                           const WaitLimit& limit);
  ~NcclComms() { abort(); }

  const std::vector<c10::Device>& devices() const { return devices_; }
  const std::vector<c10::cuda::CUDAStream>& streams() const { return streams_; }

  // Makes the calls for every device as one group of NCCL's; returns when they are in the streams.
  absl::Status launch(Call call, const WaitLimit& limit);
  // What NCCL has noticed since; OK while all is well, and after the end.
  absl::Status error();
  // Ends what is under way here. Idempotent.
  void abort();
  // Leaves when all that was launched is through, else as abort().
  absl::Status finish(const WaitLimit& limit);

 private:
  explicit NcclComms(const std::vector<c10::Device>& devices);
  absl::Status settle(absl::string_view call, const WaitLimit& limit);
  absl::Status ended_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<c10::Device> devices_;
  std::vector<std::unique_ptr<StreamLease>> leases_;
  std::vector<c10::cuda::CUDAStream> streams_;

  Mutex mutex_;
  // Of the size of devices_; empty after the end.
  std::vector<ncclComm_t> comms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives::nccl
