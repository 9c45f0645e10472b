// Installs the tensor codec. The target is alwayslink, because no other code refers to it.
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/codec/torch/device/device_copy.h"
#include "gradwire/codec/torch/device/handover.h"
#include "gradwire/codec/torch/ipc/ipc_reader.h"
#include "gradwire/codec/torch/ipc/ipc_sharing.h"
#include "gradwire/codec/torch/ipc/ipc_writer.h"
#include "gradwire/codec/torch/tensors/tensor_reader.h"
#include "gradwire/codec/torch/tensors/tensor_writer.h"
#include "gradwire/codec/torch/tensors/torch_tensors.h"
#include "gradwire/device/device_fence.h"
#include "gradwire/device/device_transfer.h"
#include "gradwire/device/work_streams.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {
namespace {

// For each tensor of the payload, whether the autograd graph of the payload contains it.
absl::StatusOr<std::vector<bool>> in_graph(const proto::Payload& payload, std::size_t count) {
  std::vector<bool> in_graph(count, false);
  for (uint32_t index : payload.graph().tensors()) {
    if (index >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("the graph refers to tensor ", index, ", but the message has ", count, " tensors"));
    }
    in_graph[index] = true;
  }
  return in_graph;
}

// libtorch reports invalid arguments with exceptions. Converts them to InvalidArgument.
absl::Status refusal(const std::exception_ptr& exception) {
  const absl::Status status = status_from_exception(exception);
  // Errors of the device, and not of the arguments.
  if (absl::IsResourceExhausted(status) || absl::IsInternal(status)) return status;
  return absl::InvalidArgumentError(status.message());
}

absl::Status at_index(const absl::Status& status, std::size_t index) {
  return with_context(status, absl::StrCat("tensor ", index, " of the message"));
}

// Writes the tensors on devices of one message. Each of them takes the first of these ways that is possible:
//   1. The receiver is an agent of this process: the tensors themselves are handed over, after a copy on
//      their device unless they were given away.
//   2. The receiver can open memory of this process: it copies from there (IpcWriter).
//   3. Their bytes are copied to the host, large ones in pieces, and the message is sent when they are there.
class DeviceWriter {
 public:
  DeviceWriter(const DeviceRoute& route, TensorSharing sharing, EncodedTensors& out)
      : route_(route), out_(out), in_transit_(sharing, out, true), ipc_(&route) {}

  // `to`: the receiver's device.
  absl::Status write(const at::Tensor& tensor, const Device& to, proto::Tensor& out) {
    out.mutable_on_device()->set_from_device(tensor.device().str());
    if (tensor.is_quantized()) {
      return absl::InvalidArgumentError(absl::StrCat("a quantized tensor on ", tensor.device().str(),
                                                     " cannot be sent; move it to the CPU first"));
    }
    const bool on_devices = !to.is_cpu() && !route_.as_bytes;
    if (on_devices && route_.local && is_local_agent(route_.to)) {
      handover_.tensors.push_back(to_pass_on(tensor));
      out.mutable_on_device()->set_handed_over(static_cast<uint32_t>(handover_.tensors.size()));
      return absl::OkStatus();
    }
    if (on_devices && ipc_.write(tensor, out)) return absl::OkStatus();
    copied_.push_back(tensor);
    if (on_devices && has_pieces(tensor)) return write_in_pieces(tensor, out);
    return in_transit_.write(to_host(tensor), true, out);
  }

  // Call when all tensors have been written.
  absl::Status finish(proto::Payload& payload) {
    if (!copied_.empty()) out_.copies = device::DeviceFence::record_for(copied_);
    if (handover_.tensors.empty()) return ipc_.finish(payload, out_);
    handover_.from = route_.from;
    handover_.to = route_.to;
    handover_.fence = device::DeviceFence::record_for(handover_.tensors);
    uint64_t id = 0;
    out_.handed_over = hand_over(std::move(handover_), id);
    payload.mutable_transfer()->set_handover(id);
    return absl::OkStatus();
  }

 private:
  absl::Status write_in_pieces(const at::Tensor& tensor, proto::Tensor& out) {
    const PiecesOnHost host = to_host_in_pieces(tensor);
    const std::size_t first = out_.buffers.size();
    GRADWIRE_RETURN_IF_ERROR(in_transit_.write_in_pieces(host.tensor, kPieceBytes, out));
    for (std::size_t i = 0; i < host.copied.size(); ++i)
      out_.progress.push_back({host.copied[i], first + i + 1});
    return absl::OkStatus();
  }

  const DeviceRoute& route_;
  EncodedTensors& out_;
  TensorWriter in_transit_;
  // One receiver takes one of these ways only.
  Handover handover_;
  IpcWriter ipc_;
  std::vector<at::Tensor> copied_;
};

// Writes the tensors of one message. Those on the CPU, and to the CPU, become bytes.
class MessageWriter {
 public:
  MessageWriter(const DeviceRoute* route, TensorSharing sharing, EncodedTensors& out)
      : route_(route), sharing_(sharing), out_(out), writer_(sharing, out) {}

  absl::Status write(const at::Tensor& tensor, bool given_away, std::size_t index, proto::Tensor& out) {
    // The usual case first: no device on either side.
    if (tensor.is_cpu() && (route_ == nullptr || (route_->map == nullptr && route_->destinations.empty())))
      return writer_.write(tensor, given_away, out);
    GRADWIRE_RETURN_IF_ERROR(check_sendable(tensor));
    const c10::Device device = tensor.device();
    if (route_ == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("a tensor on ", device.str(),
                                                     " cannot be sent by an agent without devices; link "
                                                     "//rpc, or move it to the CPU first"));
    }
    GRADWIRE_ASSIGN_OR_RETURN(const Device to, route_->destination(Device(device), index));
    if (!to.is_cpu()) out.mutable_on_device()->set_device(to.str());
    if (device.is_cpu()) return writer_.write(tensor, given_away, out);
    if (devices_ == nullptr) devices_ = std::make_unique<DeviceWriter>(*route_, sharing_, out_);
    return devices_->write(tensor, to, out);
  }

  // Call when all tensors have been written.
  absl::Status finish(proto::Payload& payload) {
    return devices_ == nullptr ? absl::OkStatus() : devices_->finish(payload);
  }

 private:
  const DeviceRoute* const route_;
  const TensorSharing sharing_;
  EncodedTensors& out_;
  TensorWriter writer_;
  // nullptr until the first tensor on a device: most messages have none.
  std::unique_ptr<DeviceWriter> devices_;
};

// Reads the tensors on devices of one message.
class DeviceReader {
 public:
  explicit DeviceReader(const DeviceArrival* arrival) : arrival_(arrival), ipc_(arrival) {}

  // Call first if the message has tensors that are not bytes.
  absl::Status take(const proto::Payload& payload) {
    const uint64_t handover = payload.transfer().handover();
    if (handover == 0) return ipc_.begin(payload);
    if (arrival_ == nullptr) return absl::InvalidArgumentError("this worker has no devices");
    GRADWIRE_ASSIGN_OR_RETURN(handover_, take_handover(handover, arrival_->from, arrival_->to));
    return handover_.fence == nullptr ? absl::OkStatus() : handover_.fence->wait();
  }

  // `bytes`: the buffers of the message.
  absl::StatusOr<at::Tensor> read(const proto::Tensor& in, TensorReader& bytes) {
    GRADWIRE_ASSIGN_OR_RETURN(const c10::Device device, local(in.on_device().device()));
    if (in.on_device().has_shared()) return ipc_.read(in, device);
    if (in.on_device().handed_over() == 0 && TensorReader::has_pieces(in)) {
      GRADWIRE_ASSIGN_OR_RETURN(const TensorPieces pieces, bytes.read_pieces(in));
      return to_device(pieces, device);
    }
    if (in.on_device().handed_over() == 0) {
      GRADWIRE_ASSIGN_OR_RETURN(const at::Tensor on_host, bytes.read(in));
      return to_device(on_host, device);
    }
    if (in.on_device().handed_over() > handover_.tensors.size()) {
      return absl::InvalidArgumentError("it has the number of a tensor that was not handed over");
    }
    // Two descriptions may not share a tensor.
    at::Tensor tensor = std::exchange(handover_.tensors[in.on_device().handed_over() - 1], at::Tensor());
    if (!tensor.defined()) return absl::InvalidArgumentError("another tensor of the message has its number");
    return tensor.device() == device ? tensor : tensor.to(device, /*non_blocking=*/true);
  }

 private:
  absl::StatusOr<c10::Device> local(const std::string& name) {
    GRADWIRE_ASSIGN_OR_RETURN(const Device device, Device::parse(name));
    static const std::vector<Device> none;
    const std::vector<Device>& devices = arrival_ == nullptr ? none : *arrival_->devices;
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("it is for ", device.str(), ", but this worker has the devices ", to_string(devices)));
    }
    return c10::Device(device);
  }

  const DeviceArrival* const arrival_;
  Handover handover_;
  IpcReader ipc_;
};

// Reads the tensors of one message.
class MessageReader {
 public:
  MessageReader(std::vector<transport::Buffer> buffers, const DeviceArrival* arrival)
      : reader_(std::move(buffers)), arrival_(arrival) {}

  // Call first.
  absl::Status take(const proto::Payload& payload) {
    return payload.has_transfer() ? devices().take(payload) : absl::OkStatus();
  }
  absl::StatusOr<at::Tensor> read(const proto::Tensor& in) {
    return in.on_device().device().empty() ? reader_.read(in) : devices().read(in, reader_);
  }

 private:
  DeviceReader& devices() {
    if (devices_ == nullptr) devices_ = std::make_unique<DeviceReader>(arrival_);
    return *devices_;
  }

  TensorReader reader_;
  const DeviceArrival* const arrival_;
  // nullptr until the first tensor on a device: most messages have none.
  std::unique_ptr<DeviceReader> devices_;
};

struct Scope : StreamScope {
  explicit Scope(std::shared_ptr<const device::WorkStreams> streams) : scope(std::move(streams)) {}
  device::WorkStreams::Scope scope;
};

// Both directions: an exception of libtorch ends the whole message with an error that names the tensor.
// Tensors of the message that were read before are dropped.
class TorchBackend : public TensorBackend {
 public:
  using TensorBackend::decode;
  using TensorBackend::encode;

  absl::Status encode(const TensorSet& tensors, TensorSharing sharing, const DeviceRoute* route,
                      proto::Payload& payload, EncodedTensors& encoded) override {
    const auto& set = static_cast<const TorchTensors&>(tensors);
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<bool> graph, in_graph(payload, set.tensors.size()));
    MessageWriter writer(route, sharing, encoded);
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 0; i < set.tensors.size(); ++i) {
      proto::Tensor& out = *payload.add_tensors();
      try {
        if (absl::Status status = writer.write(set.tensors[i], set.given_away[i], i, out); !status.ok()) {
          return at_index(status, i);
        }
      } catch (...) {
        return at_index(refusal(std::current_exception()), i);
      }
      // A tensor in the graph gets its gradient through the graph of the call. Any other one is a new leaf
      // at the receiver, if it requires grad.
      out.set_requires_grad(set.tensors[i].requires_grad() && !graph[i]);
    }
    return writer.finish(payload);
  }

  std::unique_ptr<TensorSet> keep(const TensorSet& tensors) override {
    const auto& all = static_cast<const TorchTensors&>(tensors).tensors;
    const auto on_cpu = [](const at::Tensor& tensor) { return tensor.is_cpu(); };
    if (std::all_of(all.begin(), all.end(), on_cpu)) return nullptr;
    const c10::NoGradGuard no_grad;
    auto kept = std::make_unique<TorchTensors>();
    for (const at::Tensor& tensor : all)
      kept->add(to_pass_on(tensor).set_requires_grad(tensor.requires_grad()), false);
    return kept;
  }

  absl::StatusOr<std::unique_ptr<TensorSet>> decode(const proto::Payload& payload,
                                                    std::vector<transport::Buffer> buffers,
                                                    const DeviceArrival* arrival) override {
    const auto count = static_cast<std::size_t>(payload.tensors_size());
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<bool> graph, in_graph(payload, count));
    MessageReader reader(std::move(buffers), arrival);
    GRADWIRE_RETURN_IF_ERROR(reader.take(payload));
    auto set = std::make_unique<TorchTensors>();
    set->tensors.reserve(count);
    // Received tensors are ordinary tensors, even if the mode of this thread is inference.
    const c10::InferenceMode ordinary(false);
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 0; i < count; ++i) {
      const proto::Tensor& in = payload.tensors(static_cast<int>(i));
      try {
        absl::StatusOr<at::Tensor> tensor = reader.read(in);
        if (!tensor.ok()) return at_index(tensor.status(), i);
        if (in.requires_grad() && !graph[i]) tensor->set_requires_grad(true);
        set->add(*std::move(tensor), false);
      } catch (...) {
        return at_index(refusal(std::current_exception()), i);
      }
    }
    return set;
  }

  std::shared_ptr<void> arrived(const proto::Payload& payload, const DeviceArrival& arrival) override {
    if (const uint64_t handover = payload.transfer().handover(); handover != 0)
      return drop_handover_later(handover, arrival.from, arrival.to);
    if (arrival.transfers == nullptr) return nullptr;
    return arrival.transfers->arrived(arrival.from, payload.transfer().number());
  }

  std::vector<Device> accelerators() override {
    std::vector<Device> devices;
    const std::optional<c10::DeviceType> type = device::accelerator();
    if (!type) return devices;
    device::record_fences();
    const c10::DeviceIndex count = device::device_count();
    for (c10::DeviceIndex i = 0; i < count; ++i) devices.emplace_back(c10::Device(*type, i));
    return devices;
  }

  std::unique_ptr<StreamScope> enter_pool_streams() override {
    return std::make_unique<Scope>(device::WorkStreams::from_pool());
  }

  std::shared_ptr<HandlerStreams> make_handler_streams() override {
    class Streams : public HandlerStreams {
     public:
      std::unique_ptr<StreamScope> enter() override { return std::make_unique<Scope>(streams_.get()); }
      bool cover(const TensorSet& tensors) const override {
        const auto& all = static_cast<const TorchTensors&>(tensors).tensors;
        return std::all_of(all.begin(), all.end(), [](const at::Tensor& tensor) {
          return !tensor.defined() || tensor.is_cpu() || device::WorkStreams::covers(tensor.device());
        });
      }

     private:
      device::LastingStreams streams_;
    };
    return std::make_shared<Streams>();
  }

  StreamFencePtr record_fence(const TensorSet& tensors) override {
    return device::DeviceFence::record_for(static_cast<const TorchTensors&>(tensors).tensors);
  }

  std::shared_ptr<void> register_agent(uint64_t incarnation) override {
    return register_local_agent(incarnation);
  }

  std::unique_ptr<DeviceSharing> share_devices(std::vector<Device> devices) override {
    const std::optional<c10::DeviceType> type = device::accelerator();
    if (!type || device::device_transfer(*type) == nullptr) return nullptr;
    return std::make_unique<IpcSharing>(std::move(devices));
  }
};

[[maybe_unused]] const bool backend_installed = [] {
  static TorchBackend backend;
  install_tensor_backend(&backend);
  return true;
}();

}  // namespace
}  // namespace gradwire::rpc
