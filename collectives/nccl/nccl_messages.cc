#include "gradwire/collectives/nccl/nccl_messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/collectives/nccl/nccl_status.h"
#include "gradwire/collectives/nccl/nccl_types.h"

namespace gradwire::collectives::nccl {
namespace {

// Each channel costs a thread, a stream and a communicator, with its buffers on the GPU.
constexpr std::size_t kMostChannels = 64;

}  // namespace

std::vector<NcclMessages::Channel> NcclMessages::channels() const {
  std::vector<Channel> all;
  MutexLock lock(mutex_);
  for (const auto& [key, channel] : channels_) all.push_back(channel);
  return all;
}

void NcclMessages::stop() {
  for (const Channel& channel : channels()) channel->stop();
}

std::vector<std::shared_ptr<NcclComms>> NcclMessages::comms() const {
  std::vector<std::shared_ptr<NcclComms>> all;
  for (const Channel& channel : channels()) {
    if (auto comms = channel->comms(); comms != nullptr) all.push_back(std::move(comms));
  }
  return all;
}

absl::StatusOr<NcclMessages::Channel> NcclMessages::channel(int peer, bool sends, int tag,
                                                            c10::Device device) {
  const int from = sends ? context_.rank : peer;
  const int to = sends ? peer : context_.rank;
  MutexLock lock(mutex_);
  const auto found = channels_.find({peer, sends, tag});
  if (found != channels_.end()) {
    if (found->second->device() == device) return found->second;
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor is on the wrong device: got ", device.str(), ", but earlier messages from rank ", from,
        " to ", to, " with tag ", tag, " were on ", found->second->device().str()));
  }
  // A channel is kept until the group ends, so the number of channels is limited.
  if (channels_.size() >= kMostChannels) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "too many channels for nccl: each peer, direction and tag needs its own communicator, and "
        "this rank already has ",
        kMostChannels, "; use fewer tags"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(Channel made, make_with_threads<NcclChannel>(NcclChannel::Options{
                                              .store = context_.store,
                                              .key = absl::StrCat("p2p/", from, "/", to, "/", tag),
                                              .sends = sends,
                                              .rank = context_.rank,
                                              .peer = peer,
                                              .device = device,
                                              .watch = watch_}));
  channels_[{peer, sends, tag}] = made;
  return made;
}

absl::Status NcclMessages::transfer(at::Tensor tensor, int peer, bool sends, int tag, absl::Time deadline,
                                    const Promise<void>& ended) {
  last_work() = {};
  GRADWIRE_RETURN_IF_ERROR(check_peer(peer, context_.rank));
  GRADWIRE_RETURN_IF_ERROR(watch_->failure());
  GRADWIRE_RETURN_IF_ERROR(check_not_capturing({tensor.device()}));
  GRADWIRE_ASSIGN_OR_RETURN(const Channel channel, this->channel(peer, sends, tag, tensor.device()));
  NcclChannel::Message message;
  message.ready.record(c10::cuda::getCurrentCUDAStream(tensor.device().index()));
  message.tensor = std::move(tensor);
  message.work = std::make_shared<DeviceWork>();
  message.deadline = deadline;
  message.ended = ended;
  watch_->add({.work = message.work, .what = sends ? "send" : "recv", .peer = peer, .deadline = deadline});
  last_work() = {watch_.get(), message.work, /*blocks=*/false};
  channel->post(std::move(message));
  return absl::OkStatus();
}

Future<void> NcclMessages::send(at::Tensor tensor, int dst, int tag, absl::Time deadline) {
  // The future reports that the transfer was enqueued in its stream. The Enqueued part of the Work reports
  // its end on the device.
  const Promise<void> ended;
  const absl::Status status =
      guarded([&] { return transfer(std::move(tensor), dst, /*sends=*/true, tag, deadline, ended); });
  if (!status.ok()) ended.set_error(status);
  return ended.future();
}

Future<int> NcclMessages::receive(at::Tensor tensor, int src, int tag, absl::Time deadline) {
  const Promise<void> ended;
  const absl::Status status =
      guarded([&] { return transfer(std::move(tensor), src, /*sends=*/false, tag, deadline, ended); });
  if (!status.ok()) return Future<int>(status);
  const Promise<int> from;
  ended.future().on_ready_inline([from, src](const absl::Status& result) {
    from.set_result(result.ok() ? absl::StatusOr<int>(src) : absl::StatusOr<int>(result));
  });
  return from.future();
}

}  // namespace gradwire::collectives::nccl
