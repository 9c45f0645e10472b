#include "gradwire/codec/tensor_set.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/encoded_tensors.h"

namespace gradwire::rpc {
namespace {

constinit TensorBackend* installed = nullptr;

}  // namespace

absl::StatusOr<Device> DeviceRoute::destination(const Device& device, std::size_t tensor) const {
  Device to = device;
  if (tensor < destinations.size()) {
    to = destinations[tensor];
  } else if (map != nullptr) {
    const auto found = map->find(device);
    if (found != map->end()) {
      to = found->second;
    } else if (!device.is_cpu()) {
      return absl::InvalidArgumentError(
          is_answer ? absl::StrCat("a tensor on ", device.str(), " cannot travel back to worker \"", receiver,
                                   "\": its device map ", callers_map(), " leads to no ", device.str())
                    : absl::StrCat("a tensor on ", device.str(), " cannot travel to worker \"", receiver,
                                   "\": the device map ", callers_map(), " has no ", device.str(),
                                   "; add it with set_device_map or with_device_map, or move the tensor to "
                                   "a device of the map"));
    }
  }
  // The devices of a worker that is lost are not known any more. The message to it fails with the reason.
  if (receiver_devices != nullptr && !contains(*receiver_devices, to)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor on ", device.str(), " would arrive on ", to.str(), ", but worker \"", receiver,
                     "\" has the devices ", to_string(*receiver_devices),
                     map == nullptr ? "; without a device map a device means the one of the same name"
                                    : " and the device map is ",
                     map == nullptr ? "" : callers_map()));
  }
  return to;
}

std::string DeviceRoute::callers_map() const {
  return with_inverse(is_answer ? inverse(*map).value_or(DeviceMap()) : *map);
}

std::vector<Device> sender_devices(const proto::Payload& payload) {
  std::vector<Device> devices;
  for (int i = 0; i < payload.tensors_size(); ++i) {
    if (payload.tensors(i).on_device().from_device().empty()) continue;
    devices.resize(static_cast<std::size_t>(payload.tensors_size()));
    devices[static_cast<std::size_t>(i)] =
        Device::parse(payload.tensors(i).on_device().from_device()).value_or(Device());
  }
  return devices;
}

absl::Status TensorBackend::encode(const TensorSet& tensors, TensorSharing sharing, proto::Payload& payload,
                                   std::vector<transport::Buffer>& buffers) {
  EncodedTensors out;
  GRADWIRE_RETURN_IF_ERROR(encode(tensors, sharing, nullptr, payload, out));
  buffers = std::move(out.buffers);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TensorSet>> TensorBackend::decode(const proto::Payload& payload,
                                                                 std::vector<transport::Buffer> buffers) {
  return decode(payload, std::move(buffers), nullptr);
}

void install_tensor_backend(TensorBackend* backend) { installed = backend; }
TensorBackend* tensor_backend() { return installed; }

}  // namespace gradwire::rpc
