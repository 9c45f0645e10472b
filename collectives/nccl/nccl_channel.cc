#include "gradwire/collectives/nccl/nccl_channel.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/collectives/nccl/nccl_connect.h"
#include "gradwire/collectives/nccl/nccl_status.h"

namespace gradwire::collectives::nccl {

// thread_ is the last member, so all others exist when the thread starts.
NcclChannel::NcclChannel(Options options)
    : options_(std::move(options)),
      thread_(value_or_throw(start_thread("nccl-channel", [this] { run(); }))) {}

void NcclChannel::post(Message message) {
  {
    MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
  }
  changed_.notify_all();
}

void NcclChannel::stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<NcclComms> NcclChannel::comms() const {
  MutexLock lock(mutex_);
  return comms_;
}

// Messages are delivered in the order of post(). Both sides of a channel post the same messages in the same
// order, so the n-th send meets the n-th receive. After stop(), the remaining messages are taken one by one
// and failed, so that none of their futures stays open.
void NcclChannel::run() {
  for (;;) {
    Message message;
    bool stopped = false;
    {
      MutexLock lock(mutex_);
      while (!stop_ && messages_.empty()) changed_.wait(mutex_);
      if (messages_.empty()) return;
      message = std::move(messages_.front());
      messages_.pop_front();
      stopped = stop_;
    }
    absl::Status status =
        stopped ? absl::AbortedError("this rank is leaving the group") : options_.watch->failure();
    if (status.ok()) status = guarded([&] { return deliver(message); });
    if (status.ok()) {
      message.ended.set_value();
      continue;
    }
    // The other side would wait for this message, and NCCL cannot skip a message: so the group must fail.
    options_.watch->fail(status);
    message.work->fail(status);
    // The work may have an earlier error, from the failure of the group. That one is nearer to the cause.
    message.ended.set_error(message.work->ended().value_or(status));
  }
}

absl::Status NcclChannel::deliver(Message& message) {
  const WaitLimit limit{message.deadline, [this]() -> absl::Status {
                          GRADWIRE_RETURN_IF_ERROR(options_.watch->failure());
                          MutexLock lock(mutex_);
                          return stop_ ? absl::AbortedError("this rank is leaving the group")
                                       : absl::OkStatus();
                        }};
  std::shared_ptr<NcclComms> comms = this->comms();
  if (comms == nullptr) {
    // The channel has its own communicator of two ranks: the sender is rank 0, the receiver is rank 1.
    const auto [from, to] =
        options_.sends ? std::pair(options_.rank, options_.peer) : std::pair(options_.peer, options_.rank);
    GRADWIRE_ASSIGN_OR_RETURN(comms, connect({.store = *options_.store,
                                              .key = options_.key,
                                              .ranks = {from, to},
                                              .index = options_.sends ? 0U : 1U,
                                              .deadline = limit.deadline,
                                              .interrupted = limit.interrupted},
                                             {options_.device}));
    {
      MutexLock lock(mutex_);
      comms_ = comms;
    }
    // If the group has failed in the meantime, that failure did not end this communicator: it was not in the
    // list yet.
    const absl::Status failed = options_.watch->failure();
    if (!failed.ok()) {
      comms->abort();
      return failed;
    }
  }
  const c10::cuda::CUDAStream stream = comms->streams()[0];
  message.ready.block(stream);
  const at::Tensor& tensor = message.tensor;
  // The caller may release the tensor while the transfer still runs. The allocator then gives the memory away
  // only after the work in this stream.
  c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), stream);
  const int other = options_.sends ? 1 : 0;
  GRADWIRE_RETURN_IF_ERROR(comms->launch(
      [&](std::size_t, ncclComm_t comm, cudaStream_t raw) {
        return options_.sends ? ncclSend(tensor.data_ptr(), tensor.nbytes(), ncclUint8, other, comm, raw)
                              : ncclRecv(tensor.data_ptr(), tensor.nbytes(), ncclUint8, other, comm, raw);
      },
      limit));
  message.work->record({stream});
  return absl::OkStatus();
}

}  // namespace gradwire::collectives::nccl
