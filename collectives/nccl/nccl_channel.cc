#include "gradwire/collectives/nccl/nccl_channel.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/collectives/nccl/nccl_connect.h"
#include "gradwire/collectives/nccl/nccl_status.h"

namespace gradwire::collectives::nccl {

NcclChannel::NcclChannel(Options options) : options_(std::move(options)), thread_([this] { run(); }) {}

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
    absl::Status status = stopped ? absl::AbortedError("the group is being left") : options_.watch->failure();
    if (status.ok()) status = guarded([&] { return deliver(message); });
    if (status.ok()) {
      message.ended.set_value();
      continue;
    }
    // The other side waits for a message that does not come; NCCL has no way to skip it.
    options_.watch->fail(status);
    message.work->fail(status);
    message.ended.set_error(message.work->ended().value_or(status));
  }
}

absl::Status NcclChannel::deliver(Message& message) {
  const WaitLimit limit{message.deadline, [this]() -> absl::Status {
                           GRADWIRE_RETURN_IF_ERROR(options_.watch->failure());
                           MutexLock lock(mutex_);
                           return stop_ ? absl::AbortedError("the group is being left") : absl::OkStatus();
                         }};
  std::shared_ptr<NcclComms> comms = this->comms();
  if (comms == nullptr) {
    // The one that sends is rank 0 of the two.
    const auto [from, to] =
        options_.sends ? std::pair(options_.rank, options_.peer) : std::pair(options_.peer, options_.rank);
    GRADWIRE_ASSIGN_OR_RETURN(comms, connect({.store = *options_.store,
                                              .key = options_.key,
                                              .ranks = {from, to},
                                              .place = options_.sends ? 0U : 1U,
                                              .deadline = limit.deadline,
                                              .interrupted = limit.interrupted},
                                             {options_.device}));
    {
      MutexLock lock(mutex_);
      comms_ = comms;
    }
    // A failure meanwhile has not ended this communicator.
    const absl::Status failed = options_.watch->failure();
    if (!failed.ok()) {
      comms->abort();
      return failed;
    }
  }
  const c10::cuda::CUDAStream stream = comms->streams()[0];
  message.ready.block(stream);
  const at::Tensor& tensor = message.tensor;
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
