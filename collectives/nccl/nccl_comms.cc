// Calls of NCCL that never block. Every call is made with mutex_ held, and returns at once with
// ncclInProgress if it takes longer. wait_until_done() then polls, and takes the lock only for each poll. So
// abort() gets the lock within a moment, on any thread, also while another thread waits.

#include "gradwire/collectives/nccl/nccl_comms.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/nccl/nccl_status.h"

namespace gradwire::collectives::nccl {
namespace {

// Streams that no StreamLease holds, by device.
struct FreeStreams {
  Mutex mutex;
  std::map<c10::DeviceIndex, std::vector<c10::cuda::CUDAStream>> of ABSL_GUARDED_BY(mutex);
};

FreeStreams& free_streams() {
  static FreeStreams* instance = new FreeStreams;
  return *instance;
}

c10::cuda::CUDAStream take_stream(c10::DeviceIndex device) {
  {
    MutexLock lock(free_streams().mutex);
    std::vector<c10::cuda::CUDAStream>& free = free_streams().of[device];
    if (!free.empty()) {
      const c10::cuda::CUDAStream stream = free.back();
      free.pop_back();
      return stream;
    }
  }
  // Do not use libtorch's pool: its streams are shared, and a receive that waits would delay all other work
  // in its stream.
  const c10::cuda::CUDAGuard guard(device);
  cudaStream_t made = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return c10::cuda::getStreamFromExternal(made, device);
}

// Waits before the next poll: yields at first, because most calls end at once; later sleeps, to save CPU
// time.
void pause(int round) {
  if (round < 200) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(round < 2000 ? 20 : 500));
  }
}

}  // namespace

StreamLease::StreamLease(c10::DeviceIndex device) : stream_(take_stream(device)) {}

StreamLease::~StreamLease() {
  MutexLock lock(free_streams().mutex);
  free_streams().of[stream_.device_index()].push_back(stream_);
}

NcclComms::NcclComms(const std::vector<c10::Device>& devices)
    : devices_(devices), comms_(devices.size(), nullptr) {
  for (const c10::Device device : devices_) {
    leases_.push_back(std::make_unique<StreamLease>(device.index()));
    streams_.push_back(leases_.back()->stream());
  }
}

absl::StatusOr<std::shared_ptr<NcclComms>> NcclComms::create(const ncclUniqueId& id, int first, int total,
                                                             const std::vector<c10::Device>& devices,
                                                             const WaitLimit& limit) {
  std::shared_ptr<NcclComms> made(new NcclComms(devices));
  {
    MutexLock lock(made->mutex_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    // A thread that makes several communicators must do that inside one group of NCCL: each of them waits for
    // the others.
    GRADWIRE_RETURN_IF_ERROR(to_status(ncclGroupStart(), "ncclGroupStart"));
    ncclResult_t result = ncclSuccess;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const c10::cuda::CUDAGuard guard(devices[i]);
      const ncclResult_t one =
          ncclCommInitRankConfig(&made->comms_[i], total, id, first + static_cast<int>(i), &config);
      if (one != ncclSuccess && one != ncclInProgress) result = one;
    }
    // The group is closed also after an error: NCCL would add the next call of this thread to it.
    const ncclResult_t end = ncclGroupEnd();
    GRADWIRE_RETURN_IF_ERROR(to_status(result, "ncclCommInitRankConfig"));
    GRADWIRE_RETURN_IF_ERROR(to_status(end, "ncclCommInitRankConfig"));
  }
  GRADWIRE_RETURN_IF_ERROR(made->wait_until_done("ncclCommInitRankConfig", limit));
  return made;
}

absl::Status NcclComms::ended_locked() const {
  return comms_.empty() ? absl::AbortedError("NCCL's communicator has been ended") : absl::OkStatus();
}

absl::Status NcclComms::wait_until_done(absl::string_view call, const WaitLimit& limit) {
  for (int round = 0;; ++round) {
    bool busy = false;
    {
      MutexLock lock(mutex_);
      // abort() may have run since the last round.
      GRADWIRE_RETURN_IF_ERROR(ended_locked());
      for (ncclComm_t comm : comms_) {
        ncclResult_t state = ncclInProgress;
        // The handle of a communicator that is being made may not be set yet; that counts as busy.
        if (comm != nullptr)
          GRADWIRE_RETURN_IF_ERROR(to_status(ncclCommGetAsyncError(comm, &state), call, comm));
        GRADWIRE_RETURN_IF_ERROR(to_status(state, call, comm));
        busy = busy || state == ncclInProgress;
      }
    }
    if (!busy) return absl::OkStatus();
    if (limit.interrupted != nullptr) GRADWIRE_RETURN_IF_ERROR(limit.interrupted());
    if (Clock::system().now() >= limit.deadline) {
      return absl::DeadlineExceededError(absl::StrCat(call, " did not end before its deadline"));
    }
    pause(round);
  }
}

absl::Status NcclComms::launch(Call call, const WaitLimit& limit) {
  {
    MutexLock lock(mutex_);
    GRADWIRE_RETURN_IF_ERROR(ended_locked());
    GRADWIRE_RETURN_IF_ERROR(to_status(ncclGroupStart(), "ncclGroupStart"));
    absl::Status status;
    for (std::size_t i = 0; i < devices_.size() && status.ok(); ++i) {
      const c10::cuda::CUDAGuard guard(devices_[i]);
      status = to_status(call(i, comms_[i], streams_[i].stream()), "NCCL", comms_[i]);
    }
    // Close NCCL's group also after an error.
    const absl::Status end = to_status(ncclGroupEnd(), "ncclGroupEnd", comms_[0]);
    GRADWIRE_RETURN_IF_ERROR(status);
    GRADWIRE_RETURN_IF_ERROR(end);
  }
  return wait_until_done("NCCL", limit);
}

absl::Status NcclComms::error() {
  MutexLock lock(mutex_);
  for (ncclComm_t comm : comms_) {
    if (comm == nullptr) continue;
    ncclResult_t state = ncclSuccess;
    GRADWIRE_RETURN_IF_ERROR(to_status(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError", comm));
    GRADWIRE_RETURN_IF_ERROR(to_status(state, "NCCL", comm));
  }
  return absl::OkStatus();
}

// Holds the lock: no other thread may be inside a call on a communicator that is destroyed. All waits are
// outside the lock, so it is never held for long.
void NcclComms::abort() {
  MutexLock lock(mutex_);
  for (ncclComm_t comm : std::exchange(comms_, {})) {
    if (comm != nullptr) (void)ncclCommAbort(comm);
  }
}

// ncclCommFinalize lets the operations under way end, which abort() does not. It is not blocking either, so
// it is followed by a wait with a limit. A communicator that cannot be finalised in time is aborted.
absl::Status NcclComms::finish(const WaitLimit& limit) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    if (comms_.empty()) return absl::OkStatus();
    status = to_status(ncclGroupStart(), "ncclGroupStart");
    for (ncclComm_t comm : comms_) {
      if (status.ok()) status = to_status(ncclCommFinalize(comm), "ncclCommFinalize", comm);
    }
    const absl::Status end = to_status(ncclGroupEnd(), "ncclCommFinalize");
    if (status.ok()) status = end;
  }
  if (status.ok()) status = wait_until_done("ncclCommFinalize", limit);
  if (!status.ok()) {
    abort();
    return status;
  }
  MutexLock lock(mutex_);
  // If abort() has run since the wait, comms_ is empty.
  for (ncclComm_t comm : std::exchange(comms_, {})) (void)ncclCommDestroy(comm);
  return absl::OkStatus();
}

}  // namespace gradwire::collectives::nccl
