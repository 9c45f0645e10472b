#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAEvent.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/nccl/device_work.h"
#include "gradwire/collectives/nccl/group_watch.h"
#include "gradwire/collectives/nccl/nccl_comms.h"
#include "gradwire/store/store.h"

namespace gradwire::collectives::nccl {

// Messages of one tag from one rank to another, in their order: a communicator of the two, a stream, and a
// thread that waits for the other side, so that nobody's call does and no message waits for one of another
// channel. CUDA gives streams a limited number of queues (CUDA_DEVICE_MAX_CONNECTIONS): who lets many
// channels wait at once raises it.
class NcclChannel {
 public:
  struct Options {
    std::shared_ptr<store::Store> store;
    // The same on both sides, and used by this channel alone.
    std::string key;
    bool sends = false;
    int rank = 0;
    int peer = 0;
    c10::Device device;
    std::shared_ptr<GroupWatch> watch;
  };
  struct Message {
    at::Tensor tensor;
    // Behind what the caller's stream had then.
    c10::cuda::CUDAEvent ready;
    std::shared_ptr<DeviceWork> work;
    absl::Time deadline;
    // Done when it is in the stream.
    Promise<void> ended;
  };

  explicit NcclChannel(Options options);
  ~NcclChannel() { stop(); }

  c10::Device device() const { return options_.device; }
  void post(Message message);
  // Messages that are posted and not yet in the stream fail.
  void stop();
  // nullptr before there is one.
  std::shared_ptr<NcclComms> comms() const;

 private:
  void run();
  absl::Status deliver(Message& message);

  const Options options_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<NcclComms> comms_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gradwire::collectives::nccl
