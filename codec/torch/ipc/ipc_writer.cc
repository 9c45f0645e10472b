#include "gradwire/codec/torch/ipc/ipc_writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/codec/torch/device/device_copy.h"
#include "gradwire/codec/torch/ipc/ipc_sharing.h"
#include "gradwire/codec/torch/tensors/tensor_layout.h"
#include "gradwire/device/streams.h"

namespace gradwire::rpc {

// The tensors and events of one message.
class IpcShipment : public Shipment {
 public:
  struct Part {
    c10::Device device;
    std::string identity;
    EventPair events;
  };

  IpcShipment(IpcSharing& sharing, uint64_t worker)
      : sharing_(sharing), events_(sharing.made_events()), worker_(worker) {}

  absl::StatusOr<std::size_t> part_of(c10::Device device) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].device == device) return i;
    }
    GRADWIRE_ASSIGN_OR_RETURN(std::string identity, sharing_.identity(Device(device)));
    GRADWIRE_ASSIGN_OR_RETURN(EventPair events, events_->take(worker_, device));
    parts_.push_back({device, std::move(identity), std::move(events)});
    return parts_.size() - 1;
  }
  void keep(at::Tensor tensor) { tensors_.push_back(std::move(tensor)); }
  bool empty() const { return tensors_.empty(); }

  // The memory was computed, or will be, by what is on the current streams now.
  absl::Status record_ready(proto::Transfer& out) {
    for (Part& part : parts_) {
      GRADWIRE_RETURN_IF_ERROR(part.events.ready->record(device::current_stream(part.device)));
      proto::SharedDevice& shared = *out.add_devices();
      shared.set_identity(part.identity);
      shared.set_ready(part.events.ready->handle());
      shared.set_consumed(part.events.consumed->handle());
    }
    return absl::OkStatus();
  }

  // The steps, in this order:
  //   1. A stream waits for the end of the copies in the other process.
  //   2. The allocator learns that this stream uses the memory. So it gives the memory to nobody else before
  //      the stream has passed step 1.
  //   3. The tensors are dropped, and the events may be recorded again.
  void release() override try {
    for (Part& part : parts_) {
      const c10::Stream stream = sharing_.release_stream(part.device);
      if (!part.events.consumed->block(stream).ok()) return;  // The device is lost.
      for (const at::Tensor& tensor : tensors_) device::record_use(tensor, stream);
    }
    tensors_.clear();
    for (Part& part : parts_) events_->give(worker_, part.device, std::move(part.events));
    parts_.clear();
  } catch (...) {
    // The device is lost, and its memory with it.
  }

 private:
  // Valid until the agent ends, and with it all its transfers.
  IpcSharing& sharing_;
  const std::shared_ptr<MadeEvents> events_;
  const uint64_t worker_;
  std::vector<Part> parts_;
  std::vector<at::Tensor> tensors_;
};

IpcWriter::IpcWriter(const DeviceRoute* route) : route_(route) {}
IpcWriter::~IpcWriter() = default;

bool IpcWriter::write(const at::Tensor& tensor, proto::Tensor& out) {
  DeviceTransfers* const transfers = route_ == nullptr ? nullptr : route_->transfers;
  if (transfers == nullptr || tensor.layout() != at::kStrided || tensor.numel() == 0 ||
      tensor._is_zerotensor()) {
    return false;
  }
  const Device device(tensor.device());
  if (!transfers->can_send(route_->to, device)) return false;
  const absl::Status status = describe(to_pass_on(tensor), out);
  if (!status.ok()) transfers->refused(route_->to, device, status);
  return status.ok();
}

absl::Status IpcWriter::describe(const at::Tensor& tensor, proto::Tensor& out) {
  GRADWIRE_ASSIGN_OR_RETURN(const TensorExtent extent,
                            checked_extent(tensor.sizes(), static_cast<int64_t>(tensor.element_size())));
  GRADWIRE_ASSIGN_OR_RETURN(
      const device::SharedMemory memory,
      device::device_transfer(tensor.device().type())->share(tensor.device(), tensor.const_data_ptr()));
  if (shipment_ == nullptr) {
    shipment_ =
        std::make_unique<IpcShipment>(static_cast<IpcSharing&>(route_->transfers->sharing()), route_->to);
  }
  GRADWIRE_ASSIGN_OR_RETURN(const std::size_t part, shipment_->part_of(tensor.device()));
  shipment_->keep(tensor);
  out.set_dtype(static_cast<uint32_t>(tensor.scalar_type()));
  out.mutable_sizes()->Add(tensor.sizes().begin(), tensor.sizes().end());
  if (!tensor.is_contiguous()) {
    const std::vector<int64_t> strides = portable_strides(tensor.sizes(), tensor.strides(), extent.numel);
    out.mutable_strides()->Add(strides.begin(), strides.end());
  }
  proto::SharedMemory& shared = *out.mutable_on_device()->mutable_shared();
  shared.set_device(static_cast<uint32_t>(part));
  shared.set_handle(memory.handle);
  shared.set_size(memory.size);
  shared.set_offset(memory.offset);
  return absl::OkStatus();
}

absl::Status IpcWriter::finish(proto::Payload& payload, EncodedTensors& out) {
  if (shipment_ == nullptr || shipment_->empty()) return absl::OkStatus();
  proto::Transfer& transfer = *payload.mutable_transfer();
  GRADWIRE_RETURN_IF_ERROR(shipment_->record_ready(transfer));
  GRADWIRE_ASSIGN_OR_RETURN(DeviceTransfers::Started started,
                            route_->transfers->start(route_->to, std::move(shipment_)));
  transfer.set_number(started.number);
  out.handed_over = std::move(started.kept);
  return absl::OkStatus();
}

}  // namespace gradwire::rpc
