#include "gradwire/collectives/nccl/nccl_group.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/nccl/device_records.h"
#include "gradwire/collectives/nccl/nccl_status.h"

namespace gradwire::collectives::nccl {
namespace {

constexpr std::size_t kMostChannels = 64;
// How long leaving waits for what is under way.
constexpr absl::Duration kLeaveTime = absl::Seconds(10);

// What the calling thread's last operation left, and in which group.
struct Last {
  const NcclGroup* group = nullptr;
  std::shared_ptr<DeviceWork> work;
  bool blocks = false;
};
thread_local Last last;

GroupWatch::Options watch_options(const BackendContext& context, Watchdog& watchdog,
                                  std::function<absl::Status()> check, std::function<void()> abort) {
  GroupWatch::Options options;
  options.group = context.group;
  options.rank = context.rank;
  // In messages a group's ranks are its own, which ProcessGroup translates.
  for (int rank = 0; rank < context.size; ++rank) options.ranks.push_back(rank);
  options.store = context.store;
  options.process = this_process();
  options.check = std::move(check);
  options.abort = [abort = std::move(abort)](const absl::Status&) { abort(); };
  options.wake = [&watchdog] { watchdog.wake(); };
  return options;
}

}  // namespace

NcclGroup::NcclGroup(const BackendContext& context, std::shared_ptr<Watchdog> watchdog)
    : context_(context),
      watchdog_(std::move(watchdog)),
      watch_(std::make_shared<GroupWatch>(watch_options(
          context_, *watchdog_,
          [this]() -> absl::Status {
            for (const Comms& comms : all_comms()) GRADWIRE_RETURN_IF_ERROR(comms->error());
            return absl::OkStatus();
          },
          [this] {
            for (const Comms& comms : all_comms()) comms->abort();
          }))),
      multi_device_(make_multi_device(*this)) {
  watchdog_->watch(watch_);
}

NcclGroup::~NcclGroup() {
  if (last.group == this) last = {};
  leave();
  watchdog_->forget(watch_.get());
}

void NcclGroup::leave() {
  std::map<std::tuple<int, bool, int>, std::shared_ptr<NcclChannel>> channels;
  {
    MutexLock lock(mutex_);
    channels = channels_;
  }
  for (const auto& [key, channel] : channels) channel->stop();
  // Others may still need what this rank has sent, so it is seen through; NCCL says when.
  const absl::Time deadline = Clock::system().now() + std::min(kLeaveTime, context_.timeout);
  for (const Comms& comms : all_comms()) {
    if (!watch_->failure().ok()) break;
    const absl::Status status = comms->finish({deadline, [this] { return watch_->failure(); }});
    if (!status.ok()) watch_->fail(with_context(status, "it left with operations under way"));
  }
  watch_->leave();
  for (const Comms& comms : all_comms()) comms->abort();
}

std::vector<NcclGroup::Comms> NcclGroup::all_comms() const {
  std::vector<Comms> all;
  MutexLock lock(mutex_);
  for (const Comms& comms : {single_, several_}) {
    if (comms != nullptr) all.push_back(comms);
  }
  for (const auto& [key, channel] : channels_) {
    if (Comms comms = channel->comms(); comms != nullptr) all.push_back(std::move(comms));
  }
  return all;
}

std::unique_ptr<Enqueued> NcclGroup::take_enqueued() {
  const Last taken = std::exchange(last, {});
  if (taken.group != this || taken.work == nullptr) return nullptr;
  return std::make_unique<EnqueuedWork>(taken.work, taken.blocks);
}

void NcclGroup::remember(std::shared_ptr<DeviceWork> work, bool blocks) {
  last = {this, std::move(work), blocks};
}

absl::StatusOr<NcclGroup::Comms> NcclGroup::existing(const std::vector<c10::Device>& devices) const {
  MutexLock lock(mutex_);
  const Comms& made = devices.size() > 1 ? several_ : single_;
  if (made == nullptr || made->devices() == devices) return made;
  return absl::InvalidArgumentError(absl::StrCat(
      "the tensors are on ", absl::StrJoin(devices, ", ", absl::StreamFormatter()),
      "; the group's communicator is on ", absl::StrJoin(made->devices(), ", ", absl::StreamFormatter()),
      ", where its first collective was"));
}

absl::StatusOr<NcclGroup::Comms> NcclGroup::comms_for(const std::vector<c10::Device>& devices,
                                                      absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(Comms made, existing(devices));
  if (made != nullptr) return made;
  // Every rank fails alike where devices are refused, and goes on with the next number.
  const std::string key = absl::StrCat("comms/", setups_++);
  GRADWIRE_ASSIGN_OR_RETURN(made, make_comms(key, devices, deadline));
  {
    MutexLock lock(mutex_);
    (devices.size() > 1 ? several_ : single_) = made;
  }
  // Whoever failed the group meanwhile did not see it.
  const absl::Status failed = watch_->failure();
  if (!failed.ok()) made->abort();
  GRADWIRE_RETURN_IF_ERROR(failed);
  return made;
}

absl::StatusOr<NcclGroup::Comms> NcclGroup::make_comms(const std::string& key,
                                                       const std::vector<c10::Device>& devices,
                                                       absl::Time deadline) {
  const Patience patience{deadline, [this] { return watch_->failure(); }};
  Gathering gathering{.store = *context_.store,
                      .key = absl::StrCat(key, "/devices"),
                      .place = static_cast<std::size_t>(context_.rank),
                      .deadline = deadline,
                      .interrupted = patience.interrupted};
  for (int rank = 0; rank < context_.size; ++rank) gathering.ranks.push_back(rank);
  GRADWIRE_RETURN_IF_ERROR(gather_records(gathering, own_record(devices)).status());
  GRADWIRE_ASSIGN_OR_RETURN(const ncclUniqueId id, share_id(*context_.store, absl::StrCat(key, "/id"),
                                                            context_.rank == 0, patience));
  const int each = static_cast<int>(devices.size());
  return NcclComms::create(id, context_.rank * each, context_.size * each, devices, patience);
}

absl::Status NcclGroup::enqueue(const Call& call, DeviceWork& work, absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const Comms comms, comms_for(call.devices, deadline));
  const std::vector<c10::cuda::CUDAStream>& streams = comms->streams();
  for (std::size_t i = 0; i < streams.size(); ++i) {
    c10::cuda::CUDAEvent ready;
    ready.record(c10::cuda::getCurrentCUDAStream(call.devices[i].index()));
    ready.block(streams[i]);
    if (call.before == nullptr) continue;
    const c10::cuda::CUDAStreamGuard guard(streams[i]);
    call.before(i);
  }
  for (const at::Tensor& tensor : call.tensors) {
    const auto device = std::find(call.devices.begin(), call.devices.end(), tensor.device());
    c10::cuda::CUDACachingAllocator::recordStream(
        tensor.storage().data_ptr(), streams[static_cast<std::size_t>(device - call.devices.begin())]);
  }
  GRADWIRE_RETURN_IF_ERROR(comms->launch(call.body, {deadline, [this] { return watch_->failure(); }}));
  for (std::size_t i = 0; i < streams.size() && call.after != nullptr; ++i) {
    const c10::cuda::CUDAStreamGuard guard(streams[i]);
    call.after(i);
  }
  work.record(streams);
  return absl::OkStatus();
}

absl::Status NcclGroup::perform(const Call& call, absl::Time deadline) {
  last = {};
  GRADWIRE_RETURN_IF_ERROR(watch_->failure());
  for (const at::Tensor& tensor : call.tensors) {
    if (std::find(call.devices.begin(), call.devices.end(), tensor.device()) == call.devices.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(call.what, ": a tensor is on ", tensor.device().str(), ", not on ",
                       absl::StrJoin(call.devices, ", ", absl::StreamFormatter())));
    }
  }
  // Refused here before it is counted as begun.
  GRADWIRE_RETURN_IF_ERROR(existing(call.devices).status());
  const auto work = std::make_shared<DeviceWork>();
  watch_->add({.work = work, .what = call.what, .number = watch_->begin(), .deadline = deadline});
  const absl::Status status = guarded([&] { return enqueue(call, *work, deadline); });
  if (status.ok()) {
    remember(work, call.blocks);
    return status;
  }
  // What all ranks refuse alike breaks nothing: it is what came of comparing their devices.
  const bool refused = status.code() == absl::StatusCode::kInvalidArgument;
  if (!refused) watch_->fail(status);
  work->fail(status);
  return work->ended().value_or(status);
}

absl::StatusOr<std::shared_ptr<NcclChannel>> NcclGroup::channel(int peer, bool sends, int tag,
                                                                c10::Device device) {
  const int from = sends ? context_.rank : peer;
  const int to = sends ? peer : context_.rank;
  MutexLock lock(mutex_);
  const auto found = channels_.find({peer, sends, tag});
  if (found != channels_.end()) {
    if (found->second->device() == device) return found->second;
    return absl::InvalidArgumentError(absl::StrCat("the tensor is on ", device.str(), "; messages from rank ",
                                                   from, " to ", to, " with tag ", tag, " are on ",
                                                   found->second->device().str(), " here"));
  }
  if (channels_.size() >= kMostChannels) {
    return absl::ResourceExhaustedError(
        absl::StrCat("nccl has neither tags nor sources, so each pair of peer and tag "
                     "takes a communicator, and this rank has ",
                     kMostChannels, " of them: use fewer tags"));
  }
  auto made =
      std::make_shared<NcclChannel>(NcclChannel::Options{.store = context_.store,
                                                         .key = absl::StrCat("p2p/", from, "/", to, "/", tag),
                                                         .sends = sends,
                                                         .rank = context_.rank,
                                                         .peer = peer,
                                                         .device = device,
                                                         .watch = watch_});
  channels_[{peer, sends, tag}] = made;
  return made;
}

absl::Status NcclGroup::transfer(at::Tensor tensor, int peer, bool sends, int tag, absl::Time deadline,
                                 const Promise<void>& ended) {
  last = {};
  GRADWIRE_RETURN_IF_ERROR(check_peer(peer, context_.rank));
  GRADWIRE_RETURN_IF_ERROR(watch_->failure());
  GRADWIRE_ASSIGN_OR_RETURN(const std::shared_ptr<NcclChannel> channel,
                            this->channel(peer, sends, tag, tensor.device()));
  NcclChannel::Message message;
  message.ready.record(c10::cuda::getCurrentCUDAStream(tensor.device().index()));
  message.tensor = std::move(tensor);
  message.work = std::make_shared<DeviceWork>();
  message.deadline = deadline;
  message.ended = ended;
  watch_->add({.work = message.work, .what = sends ? "send" : "recv", .peer = peer, .deadline = deadline});
  remember(message.work, /*blocks=*/false);
  channel->post(std::move(message));
  return absl::OkStatus();
}

Future<void> NcclGroup::send(at::Tensor tensor, int dst, int tag, absl::Time deadline) {
  const Promise<void> ended;
  const absl::Status status =
      guarded([&] { return transfer(std::move(tensor), dst, /*sends=*/true, tag, deadline, ended); });
  if (!status.ok()) ended.set_error(status);
  return ended.future();
}

Future<int> NcclGroup::receive(at::Tensor tensor, int src, int tag, absl::Time deadline) {
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
