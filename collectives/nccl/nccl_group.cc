#include "gradwire/collectives/nccl/nccl_group.h"

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives::nccl {
namespace {

using Tensors = std::vector<at::Tensor>;

// How long the destructor waits for operations under way.
constexpr absl::Duration kLeaveTime = absl::Seconds(10);

GroupWatch::Options watch_options(const BackendContext& context, Watchdog& watchdog,
                                  std::function<absl::Status()> check, std::function<void()> abort) {
  GroupWatch::Options options;
  options.group = context.group;
  options.rank = context.rank;
  // Messages use the ranks of the group; ProcessGroup adds the ranks of the world.
  for (int rank = 0; rank < context.size; ++rank) options.ranks.push_back(rank);
  options.store = context.store;
  options.process = this_process();
  options.check = std::move(check);
  options.abort = [abort = std::move(abort)](const absl::Status&) { abort(); };
  options.wake = [&watchdog] { watchdog.wake(); };
  return options;
}

Tensors joined(Tensors list, const Tensors& others) {
  list.insert(list.end(), others.begin(), others.end());
  return list;
}

// Sends and receives within one group of NCCL's calls. After an error the remaining ones are skipped.
class Calls {
 public:
  Calls(ncclComm_t comm, cudaStream_t stream) : comm_(comm), stream_(stream) {}

  // Empty tensors are skipped, by the sender and the receiver.
  void send(const at::Tensor& tensor, std::size_t peer) {
    if (tensor.nbytes() == 0 || failed()) return;
    result_ = ncclSend(tensor.data_ptr(), tensor.nbytes(), ncclUint8, static_cast<int>(peer), comm_, stream_);
  }
  void receive(const at::Tensor& tensor, std::size_t peer) {
    if (tensor.nbytes() == 0 || failed()) return;
    result_ = ncclRecv(tensor.data_ptr(), tensor.nbytes(), ncclUint8, static_cast<int>(peer), comm_, stream_);
  }
  ncclResult_t result() const { return result_; }

 private:
  bool failed() const { return result_ != ncclSuccess && result_ != ncclInProgress; }

  const ncclComm_t comm_;
  const cudaStream_t stream_;
  ncclResult_t result_ = ncclSuccess;
};

}  // namespace

NcclGroup::NcclGroup(const BackendContext& context, std::shared_ptr<Watchdog> watchdog)
    : context_(context),
      watchdog_(std::move(watchdog)),
      watch_(std::make_shared<GroupWatch>(watch_options(
          context_, *watchdog_,
          [this]() -> absl::Status {
            for (const auto& comms : all_comms()) GRADWIRE_RETURN_IF_ERROR(comms->error());
            return absl::OkStatus();
          },
          [this] {
            for (const auto& comms : all_comms()) comms->abort();
          }))),
      collectives_(context_, watch_),
      messages_(context_, watch_) {
  watchdog_->watch(watch_);
}

// 1. Drop what this thread last enqueued in this group, because it refers to the group.
// 2. Stop the channels of messages.
// 3. Let the operations under way end, for a limited time.
// 4. Report that this rank leaves, so that others do not wait for it. After a failure of step 3 they have its
//    reason already.
// 5. End the communicators. Then forget(): the watchdog may call check and abort of the watch, which use this
//    object, until it returns.
NcclGroup::~NcclGroup() {
  if (last_work().group == watch_.get()) last_work() = {};
  messages_.stop();
  // Other ranks may still need data from this rank. So wait until NCCL reports that the operations have
  // ended.
  const absl::Time deadline = Clock::system().now() + std::min(kLeaveTime, context_.timeout);
  for (const auto& comms : all_comms()) {
    // After a failure the communicators have been aborted, and there is nothing to wait for.
    if (!watch_->failure().ok()) break;
    const absl::Status status = comms->finish({deadline, [this] { return watch_->failure(); }});
    if (!status.ok()) watch_->fail(with_context(status, "the rank left while operations were under way"));
  }
  watch_->leave();
  for (const auto& comms : all_comms()) comms->abort();
  watchdog_->forget(watch_.get());
}

std::vector<std::shared_ptr<NcclComms>> NcclGroup::all_comms() const {
  std::vector<std::shared_ptr<NcclComms>> all = collectives_.comms();
  for (auto& comms : messages_.comms()) all.push_back(std::move(comms));
  return all;
}

std::unique_ptr<Enqueued> NcclGroup::take_enqueued() {
  // The thread may have used another group since.
  const LastWork taken = std::exchange(last_work(), {});
  if (taken.group != watch_.get() || taken.work == nullptr) return nullptr;
  return std::make_unique<EnqueuedWork>(taken.work, taken.blocks);
}

absl::Status NcclGroup::gather(at::Tensor tensor, Tensors outputs, int root, absl::Time deadline) {
  return collectives_.perform(
      {.what = "gather", .devices = {tensor.device()}, .tensors = joined(outputs, {tensor})}, deadline,
      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
        Calls calls(comm, stream);
        calls.send(tensor, static_cast<std::size_t>(root));
        for (std::size_t i = 0; i < outputs.size(); ++i) calls.receive(outputs[i], i);
        return calls.result();
      });
}

absl::Status NcclGroup::scatter(at::Tensor tensor, Tensors inputs, int root, absl::Time deadline) {
  return collectives_.perform(
      {.what = "scatter", .devices = {tensor.device()}, .tensors = joined(inputs, {tensor})}, deadline,
      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
        Calls calls(comm, stream);
        for (std::size_t i = 0; i < inputs.size(); ++i) calls.send(inputs[i], i);
        calls.receive(tensor, static_cast<std::size_t>(root));
        return calls.result();
      });
}

absl::Status NcclGroup::all_to_all(Tensors outputs, Tensors inputs, absl::Time deadline) {
  return collectives_.perform(
      {.what = "all_to_all", .devices = {outputs.front().device()}, .tensors = joined(outputs, inputs)},
      deadline, [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
        Calls calls(comm, stream);
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          calls.send(inputs[i], i);
          calls.receive(outputs[i], i);
        }
        return calls.result();
      });
}

absl::Status NcclGroup::barrier_on(const std::vector<int>& device_ids, absl::Time deadline) {
  if (device_ids.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("barrier: too many devices for nccl: got ", device_ids.size(), ", expected at most 1"));
  }
  const int index = device_ids.empty() ? context_.device_id : device_ids[0];
  c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  if (index < 0) {
    device = collectives_.single_device().value_or(c10::Device(c10::kCUDA, c10::cuda::current_device()));
  } else if (index >= c10::cuda::device_count()) {
    return absl::InvalidArgumentError(absl::StrCat("barrier: cuda:", index, " not found; this process sees ",
                                                   c10::cuda::device_count(), " GPUs"));
  }
  at::Tensor token;
  const auto make_token = [&](std::size_t) {
    const c10::InferenceMode ordinary(false);
    token = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(device));
  };
  return collectives_.perform({.what = "barrier", .devices = {device}, .before = make_token, .blocks = true},
                              deadline, [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                                return ncclAllReduce(token.data_ptr(), token.data_ptr(), 1, ncclInt32,
                                                     ncclSum, comm, stream);
                              });
}

}  // namespace gradwire::collectives::nccl
