#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAEvent.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/nccl/device_work.h"
#include "gradwire/collectives/nccl/group_watch.h"
#include "gradwire/collectives/nccl/nccl_comms.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::collectives::nccl {

// The messages with one tag from one rank to another, in their order. A channel has a communicator of the two
// ranks, a stream, and a thread. The thread waits for the other side, so no caller waits, and no message
// waits for a message of another channel. CUDA has a limited number of queues for streams: a program in which
// many channels wait at the same time must raise CUDA_DEVICE_MAX_CONNECTIONS.
class NcclChannel {
 public:
  struct Options {
    std::shared_ptr<store::Store> store;
    // The prefix of the channel's keys in the store: equal on both sides, and used by no other channel.
    std::string key;
    bool sends = false;
    int rank = 0;
    int peer = 0;
    c10::Device device;
    std::shared_ptr<GroupWatch> watch;
  };
  struct Message {
    at::Tensor tensor;
    // Recorded in the caller's stream when the message was posted; the transfer waits for it.
    c10::cuda::CUDAEvent ready;
    std::shared_ptr<DeviceWork> work;
    absl::Time deadline;
    // Completed when the transfer has been enqueued in the stream.
    Promise<void> ended;
  };

  explicit NcclChannel(Options options);
  ~NcclChannel() { stop(); }

  c10::Device device() const { return options_.device; }
  // Adds a message; returns at once.
  void post(Message message);
  // Ends the thread. Posted messages that are not in the stream yet fail with Aborted.
  void stop();
  // The communicator; nullptr before the first message has made it.
  std::shared_ptr<NcclComms> comms() const;

 private:
  void run();
  // Enqueues the transfer of one message; the first one makes the communicator.
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
