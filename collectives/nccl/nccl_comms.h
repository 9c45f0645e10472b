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

// Exclusive use of a stream of a device. The destructor keeps the stream for the next lease. Streams are
// never destroyed, because libtorch's allocator may still wait for work in them.
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

// The limit of a wait for NCCL.
struct WaitLimit {
  absl::Time deadline = absl::InfiniteFuture();
  // Called repeatedly while waiting; an error ends the wait.
  std::function<absl::Status()> interrupted;
};

// This process's ranks of one NCCL communicator, one for each of its devices, with a stream for each. The
// communicator is non-blocking: no call of NCCL takes long, and this class does all waiting without a lock.
// So abort() can run at any time on any thread. Thread-safe.
class NcclComms {
 public:
  using Call = absl::FunctionRef<ncclResult_t(std::size_t device, ncclComm_t comm, cudaStream_t stream)>;

  // Makes a communicator of `total` ranks. This process has the ranks first, first + 1, ..., one for each
  // device. Waits for the other ranks. Errors: DeadlineExceeded; the error of `limit.interrupted`; NCCL's
  // errors.
  static absl::StatusOr<std::shared_ptr<NcclComms>> create(const ncclUniqueId& id, int first, int total,
                                                           const std::vector<c10::Device>& devices,
                                                           const WaitLimit& limit);
  ~NcclComms() { abort(); }

  const std::vector<c10::Device>& devices() const { return devices_; }
  const std::vector<c10::cuda::CUDAStream>& streams() const { return streams_; }

  // Runs `call` for every device, as one group of NCCL's. Returns when the operations are enqueued in the
  // streams.
  absl::Status launch(Call call, const WaitLimit& limit);
  // The asynchronous error that NCCL reports; OK if it reports none, and after the communicator has ended.
  absl::Status error();
  // Ends the communicator and the operations under way. Idempotent.
  void abort();
  // Waits until all operations have ended, then ends the communicator. After an error it acts as abort().
  absl::Status finish(const WaitLimit& limit);

 private:
  explicit NcclComms(const std::vector<c10::Device>& devices);
  // Waits until no communicator reports that it is in progress. `call`: the name of NCCL's call, for
  // messages.
  absl::Status wait_until_done(absl::string_view call, const WaitLimit& limit);
  absl::Status ended_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<c10::Device> devices_;
  std::vector<std::unique_ptr<StreamLease>> leases_;
  std::vector<c10::cuda::CUDAStream> streams_;

  Mutex mutex_;
  // One for each device; empty after the communicator has ended.
  std::vector<ncclComm_t> comms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives::nccl
