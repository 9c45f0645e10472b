#include "gradwire/codec/torch/ipc/ipc_reader.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ne.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/codec/torch/ipc/ipc_sharing.h"
#include "gradwire/codec/torch/tensors/tensor_layout.h"
#include "gradwire/codec/torch/tensors/tensor_reader.h"
#include "gradwire/device/device_fence.h"
#include "gradwire/device/streams.h"

namespace gradwire::rpc {
namespace {

constexpr int kMaxDevices = 64;
constexpr std::size_t kMaxHandle = 4096;

// The strides of a row-major tensor.
std::vector<int64_t> row_major(at::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t next = 1;
  for (std::size_t i = sizes.size(); i-- > 0; next *= sizes[i]) strides[i] = next;
  return strides;
}

}  // namespace

absl::Status IpcReader::begin(const proto::Payload& payload) {
  if (!payload.has_transfer()) return absl::OkStatus();
  const proto::Transfer& transfer = payload.transfer();
  if (arrival_ == nullptr || arrival_->transfers == nullptr) {
    return absl::InvalidArgumentError(
        "the message has tensors in the memory of another process, which this worker does not read; use the "
        "channel \"ipc\" on both workers");
  }
  if (transfer.devices_size() > kMaxDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed message: its transfer has ", transfer.devices_size(), " devices"));
  }
  GRADWIRE_RETURN_IF_ERROR(arrival_->transfers->begin_read(arrival_->from, transfer.number()));
  transfer_ = &transfer;
  sharing_ = static_cast<IpcSharing*>(&arrival_->transfers->sharing());
  sources_.resize(static_cast<std::size_t>(transfer.devices_size()));
  return absl::OkStatus();
}

absl::StatusOr<IpcReader::Source*> IpcReader::source(uint32_t index) {
  if (transfer_ == nullptr || index >= sources_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("it is in the memory of device ", index,
                                                   " of the message, which has ", sources_.size()));
  }
  std::unique_ptr<Source>& source = sources_[index];
  if (source != nullptr) return source.get();
  const proto::SharedDevice& shared = transfer_->devices(static_cast<int>(index));
  if (shared.ready().size() > kMaxHandle || shared.consumed().size() > kMaxHandle)
    return absl::InvalidArgumentError("the handle of an event is too long");
  GRADWIRE_ASSIGN_OR_RETURN(const c10::Device device, sharing_->find(shared.identity()));
  auto opened = std::make_unique<Source>(Source{device, nullptr, nullptr});
  OpenedEvents& events = sharing_->opened_events();
  GRADWIRE_ASSIGN_OR_RETURN(opened->ready, events.take(arrival_->from, device, shared.ready()));
  GRADWIRE_ASSIGN_OR_RETURN(opened->consumed, events.take(arrival_->from, device, shared.consumed()));
  GRADWIRE_RETURN_IF_ERROR(opened->ready->block(device::current_stream(device)));
  source = std::move(opened);
  return source.get();
}

// Everything that the copy relies on is checked before it is enqueued.
absl::StatusOr<at::Tensor> IpcReader::read(const proto::Tensor& in, c10::Device device) {
  const proto::SharedMemory& shared = in.on_device().shared();
  GRADWIRE_ASSIGN_OR_RETURN(const at::ScalarType dtype, checked_dtype(in.dtype()));
  if (in.kind() != proto::Tensor::STRIDED || c10::isQIntType(dtype) || in.parts_size() != 0 ||
      in.buffer() != 0 || !in.inline_data().empty() || in.on_device().handed_over() != 0) {
    return absl::InvalidArgumentError(
        "it is in the memory of another process, but it is not a plain strided tensor without other data");
  }
  GRADWIRE_ASSIGN_OR_RETURN(const TensorExtent extent,
                            checked_extent(in.sizes(), static_cast<int64_t>(c10::elementSize(dtype))));
  if (extent.numel == 0) return absl::InvalidArgumentError("it has no elements, but it has memory");
  if (in.strides_size() != 0) GRADWIRE_RETURN_IF_ERROR(check_dense(in.sizes(), in.strides(), extent.numel));
  const auto bytes = static_cast<uint64_t>(extent.bytes);
  if (bytes > shared.size() || shared.offset() > shared.size() - bytes) {
    return absl::InvalidArgumentError(absl::StrCat("its ", bytes, " bytes at the position ", shared.offset(),
                                                   " are not within its allocation of ", shared.size(),
                                                   " bytes"));
  }
  if (shared.handle().size() > kMaxHandle)
    return absl::InvalidArgumentError("the handle of its allocation is too long");
  GRADWIRE_ASSIGN_OR_RETURN(Source * from, source(shared.device()));
  GRADWIRE_ASSIGN_OR_RETURN(
      std::shared_ptr<OpenedMemories::Allocation> allocation,
      sharing_->memories().open(arrival_->from, from->device, shared.handle(), shared.size()));

  const at::IntArrayRef sizes(in.sizes().data(), in.sizes().size());
  const at::IntArrayRef given(in.strides().data(), in.strides().size());
  // The bytes of a bool may be anything. Other values than 0 and 1 are undefined behaviour in the code that
  // reads it, so they are compared with 0.
  const bool compared = dtype == at::kBool;
  const c10::DeviceGuard guard(from->device);
  at::Tensor copy =
      at::empty_strided(sizes, given.empty() ? at::IntArrayRef(row_major(sizes)) : given,
                        at::TensorOptions().dtype(compared ? at::kByte : dtype).device(from->device));
  allocations_.push_back(allocation);
  copies_.push_back(copy);
  GRADWIRE_RETURN_IF_ERROR(device::device_transfer(from->device.type())
                               ->copy(copy.mutable_data_ptr(),
                                      static_cast<const char*>(allocation->memory->data()) + shared.offset(),
                                      bytes, device::current_stream(from->device)));
  if (compared) copy = at::ne(copy, 0);
  return from->device == device ? copy : copy.to(device, /*non_blocking=*/true);
}

// The steps, in this order: the events mark the end of all copies; then the transfer ends, after which the
// sender may use them.
IpcReader::~IpcReader() {
  if (transfer_ == nullptr) return;
  OpenedEvents& events = sharing_->opened_events();
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    Source* const source = sources_[i].get();
    if (source == nullptr) continue;
    const proto::SharedDevice& shared = transfer_->devices(static_cast<int>(i));
    // An error means that the device is lost, and its copies with it.
    (void)source->consumed->record(device::current_stream(source->device));
    events.give(arrival_->from, source->device, shared.ready(), std::move(source->ready));
    events.give(arrival_->from, source->device, shared.consumed(), std::move(source->consumed));
  }
  sharing_->memories().used(allocations_, device::DeviceFence::record_for(copies_));
  allocations_.clear();
  arrival_->transfers->end_read(arrival_->from, transfer_->number());
}

}  // namespace gradwire::rpc
