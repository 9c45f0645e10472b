// The part of NcclCollectives that runs a collective: its communicator, its streams, and its errors.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/nccl/device_work.h"
#include "gradwire/collectives/nccl/nccl_collectives.h"
#include "gradwire/collectives/nccl/nccl_connect.h"
#include "gradwire/collectives/nccl/nccl_status.h"

namespace gradwire::collectives::nccl {

std::optional<c10::Device> NcclCollectives::single_device() const {
  MutexLock lock(mutex_);
  return single_ != nullptr ? std::optional<c10::Device>(single_->devices()[0]) : std::nullopt;
}

std::vector<NcclCollectives::Comms> NcclCollectives::comms() const {
  std::vector<Comms> all;
  MutexLock lock(mutex_);
  for (const Comms& comms : {single_, several_}) {
    if (comms != nullptr) all.push_back(comms);
  }
  return all;
}

// 1. Check the arguments. A refused call changes nothing.
// 2. Count the collective, and hand it to the watch, before it is enqueued: making the communicator may wait
//    for other ranks, and the watch reports how far this rank has come.
// 3. Enqueue it.
// 4. After an error, fail the group unless all ranks have the same error.
absl::Status NcclCollectives::perform(const Call& call, absl::Time deadline, NcclComms::Call body) {
  if (together_ != nullptr) return join(call, deadline, body);
  last_work() = {};
  GRADWIRE_RETURN_IF_ERROR(watch_->failure());
  for (const at::Tensor& tensor : call.tensors) {
    if (std::find(call.devices.begin(), call.devices.end(), tensor.device()) == call.devices.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(call.what, ": a tensor is on the wrong device: got ", tensor.device().str(),
                       ", expected ", absl::StrJoin(call.devices, ", ", absl::StreamFormatter())));
    }
  }
  GRADWIRE_RETURN_IF_ERROR(check_not_capturing(call.devices));
  // Check the devices before the collective is counted: a refused call must not count as begun.
  GRADWIRE_RETURN_IF_ERROR(existing(call.devices).status());
  const auto work = std::make_shared<DeviceWork>();
  watch_->add({.work = work,
               .what = absl::StrCat(call.what, call.devices.size() > 1 ? "_multigpu" : ""),
               .number = watch_->begin(),
               .deadline = deadline});
  const absl::Status status = guarded([&] { return enqueue(call, *work, deadline, body); });
  if (status.ok()) {
    last_work() = {watch_.get(), work, call.blocks};
    return status;
  }
  // InvalidArgument comes from comparing the ranks' devices: all ranks get it, so the group stays usable.
  // Other errors may concern this rank only, so the group must fail.
  const bool refused = status.code() == absl::StatusCode::kInvalidArgument;
  if (!refused) watch_->fail(status);
  work->fail(status);
  // The watch may have failed the work before, with an error that is nearer to the cause.
  return work->ended().value_or(status);
}

absl::Status NcclCollectives::enqueue(const Call& call, DeviceWork& work, absl::Time deadline,
                                      NcclComms::Call body) {
  GRADWIRE_ASSIGN_OR_RETURN(const Comms comms, comms_for(call.devices, deadline));
  const std::vector<c10::cuda::CUDAStream>& streams = comms->streams();
  for (std::size_t i = 0; i < streams.size(); ++i) {
    c10::cuda::CUDAEvent ready;
    // The operation runs in a stream of its own, after the caller's earlier work on this device.
    ready.record(c10::cuda::getCurrentCUDAStream(call.devices[i].index()));
    ready.block(streams[i]);
    if (call.before == nullptr) continue;
    const c10::cuda::CUDAStreamGuard guard(streams[i]);
    call.before(i);
  }
  for (const at::Tensor& tensor : call.tensors) {
    const auto device = std::find(call.devices.begin(), call.devices.end(), tensor.device());
    // The caller may release a tensor while the operation still runs in this stream.
    c10::cuda::CUDACachingAllocator::recordStream(
        tensor.storage().data_ptr(), streams[static_cast<std::size_t>(device - call.devices.begin())]);
  }
  const auto in_each_stream = [&streams](const std::function<void(std::size_t)>& run) {
    for (std::size_t i = 0; i < streams.size() && run != nullptr; ++i) {
      const c10::cuda::CUDAStreamGuard guard(streams[i]);
      run(i);
    }
  };
  const WaitLimit limit{deadline, [this] { return watch_->failure(); }};
  GRADWIRE_RETURN_IF_ERROR(comms->launch(body, limit));
  if (call.second != nullptr) {
    in_each_stream(call.between);
    GRADWIRE_RETURN_IF_ERROR(comms->launch(call.second, limit));
  }
  in_each_stream(call.after);
  work.record(streams);
  return absl::OkStatus();
}

absl::StatusOr<NcclCollectives::Comms> NcclCollectives::existing(
    const std::vector<c10::Device>& devices) const {
  MutexLock lock(mutex_);
  const Comms& made = devices.size() > 1 ? several_ : single_;
  if (made == nullptr || made->devices() == devices) return made;
  return absl::InvalidArgumentError(absl::StrCat(
      "the tensors are on the wrong devices: got ", absl::StrJoin(devices, ", ", absl::StreamFormatter()),
      ", expected the devices of the group's first collective, ",
      absl::StrJoin(made->devices(), ", ", absl::StreamFormatter())));
}

absl::StatusOr<NcclCollectives::Comms> NcclCollectives::comms_for(const std::vector<c10::Device>& devices,
                                                                  absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(Comms made, existing(devices));
  if (made != nullptr) return made;
  // If the devices are refused, every rank gets the same error, so all ranks use the same number for the next
  // attempt.
  Gathering gathering{.store = *context_.store,
                      .key = absl::StrCat("comms/", setups_++),
                      .index = static_cast<std::size_t>(context_.rank),
                      .deadline = deadline,
                      .interrupted = [this] { return watch_->failure(); }};
  for (int rank = 0; rank < context_.size; ++rank) gathering.ranks.push_back(rank);
  GRADWIRE_ASSIGN_OR_RETURN(made, connect(gathering, devices));
  {
    MutexLock lock(mutex_);
    (devices.size() > 1 ? several_ : single_) = made;
  }
  // If the group has failed in the meantime, that failure did not end this communicator: it was not in the
  // list yet.
  const absl::Status failed = watch_->failure();
  if (!failed.ok()) made->abort();
  GRADWIRE_RETURN_IF_ERROR(failed);
  return made;
}

}  // namespace gradwire::collectives::nccl
