#include "gradwire/rpc/device/agent_devices.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {
namespace {

// A request with more entries than this is refused. No machine has so many devices.
constexpr int kMaxEntries = 1'024;

}  // namespace

absl::Status AgentDevices::start(const RpcBackendOptions& options, const Worker& self) {
  self_ = self.incarnation;
  maps_ = options.device_maps;
  for (const std::string& channel : options.channels) {
    if (channel != "local" && channel != "ipc" && channel != "host") {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown channel \"", channel, "\"; expected \"local\", \"ipc\" or \"host\""));
    }
  }
  const auto chosen_channel = [&](const char* name) {
    return std::find(options.channels.begin(), options.channels.end(), name) != options.channels.end();
  };
  local_ = options.channels.empty() || chosen_channel("local");
  ipc_chosen_ = chosen_channel("ipc");
  use_ipc_ = options.channels.empty() || ipc_chosen_;
  std::vector<Device> available;
  if (tensor_backend() != nullptr) available = tensor_backend()->accelerators();
  std::set<Device> wanted(options.devices.begin(), options.devices.end());
  const bool chosen = !wanted.empty();
  for (const auto& [name, map] : maps_) {
    GRADWIRE_RETURN_IF_ERROR(
        with_context(inverse(map).status(), absl::StrCat("device_maps for worker \"", name, "\"")));
    for (const auto& [from, to] : map) {
      if (!contains(available, from)) {
        return absl::InvalidArgumentError(
            absl::StrCat("device_maps for worker \"", name, "\": ", with_inverse(map), " has ", from.str(),
                         ", but worker \"", self.name, "\" has the devices ", to_string(available)));
      }
      if (chosen && !from.is_cpu() && !wanted.contains(from)) {
        return absl::InvalidArgumentError(
            absl::StrCat("device_maps for worker \"", name, "\": ", with_inverse(map), " has ", from.str(),
                         ", which is not in devices ", to_string(options.devices)));
      }
      wanted.insert(from);
    }
  }
  wanted.erase(Device());
  for (const Device& device : wanted) {
    if (!contains(available, device)) {
      return absl::InvalidArgumentError(absl::StrCat("devices: worker \"", self.name, "\" has no ",
                                                     device.str(), ", but ", to_string(available)));
    }
  }
  // Without any choice the worker uses all of its devices. Maps choose the devices on which tensors arrive.
  // They may come from others: with {cuda:0 -> cuda:1} and its inverse, each worker has to read the memory of
  // a device on which it accepts nothing.
  if (wanted.empty() && !chosen) {
    devices_ = available;
  } else {
    devices_.assign(wanted.begin(), wanted.end());
  }
  shared_ = chosen ? devices_ : std::move(available);
  if (any()) registered_ = tensor_backend()->register_agent(self.incarnation);
  return absl::OkStatus();
}

std::unique_ptr<AgentExtension> AgentDevices::open_ipc(ReferenceHost& host, ArrivalOrder& arrival_order) {
  if (!use_ipc_ || !any()) return nullptr;
  std::shared_ptr<DeviceSharing> sharing = tensor_backend()->share_devices(shared_);
  if (sharing == nullptr) {
    if (ipc_chosen_) {
      log(LogLevel::kWarning, "channels: worker \"", host.self().name,
          "\" cannot use \"ipc\", because this program has no way to share the memory of ",
          to_string(devices_), " between processes; tensors are copied through the host");
    }
    return nullptr;
  }
  ipc_ = std::make_shared<IpcChannel>(host, arrival_order, std::move(sharing),
                                      IpcChannel::Options{shared_, ipc_chosen_});
  return make_extension(ipc_);
}

void AgentDevices::announce(proto::WorkerRecord& record) const {
  for (const Device& device : devices_) record.add_devices(device.str());
  if (ipc_ != nullptr) ipc_->announce(record);
}

absl::Status AgentDevices::joined(const Worker& worker, const proto::WorkerRecord& record) {
  auto theirs = std::make_shared<std::vector<Device>>();
  for (const std::string& name : record.devices()) {
    // A name that is not a device's cannot be used, and needs no error here.
    absl::StatusOr<Device> device = Device::parse(name);
    if (device.ok() && !device->is_cpu()) theirs->push_back(*std::move(device));
  }
  {
    MutexLock lock(mutex_);
    theirs_[worker.incarnation] = theirs;
  }
  if (ipc_ != nullptr && worker.incarnation != self_) ipc_->joined(worker, record);
  const auto found = maps_.find(worker.name);
  if (found == maps_.end()) return absl::OkStatus();
  for (const auto& [from, to] : found->second) {
    if (contains(*theirs, to)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "device_maps for worker \"", worker.name, "\": ", with_inverse(found->second), " maps ", from.str(),
        " to ", to.str(), ", but the devices of worker \"", worker.name, "\" are ", to_string(*theirs)));
  }
  return absl::OkStatus();
}

void AgentDevices::left(uint64_t incarnation) {
  MutexLock lock(mutex_);
  theirs_.erase(incarnation);
}

const DeviceMap* AgentDevices::map_for(const Worker& worker, const DeviceMap* of_call) const {
  if (of_call != nullptr) return of_call;
  if (maps_.empty()) return nullptr;
  const auto found = maps_.find(worker.name);
  return found == maps_.end() ? nullptr : &found->second;
}

DeviceRoute AgentDevices::route_to(const Worker& worker, const DeviceMap* map) const {
  DeviceRoute route;
  route.map = map;
  route.receiver = worker.name;
  route.from = self_;
  route.to = worker.incarnation;
  route.local = local_;
  route.transfers = ipc_.get();
  MutexLock lock(mutex_);
  const auto found = theirs_.find(worker.incarnation);
  if (found != theirs_.end()) route.receiver_devices = found->second;
  return route;
}

absl::Status AgentDevices::decode(const Worker& from, const proto::Payload& payload,
                                  std::vector<transport::Buffer> buffers, Arrived& arrived) const {
  DeviceArrival arrival;
  bool on_device = false;
  if (any()) {
    arrival = this->arrival(from);
    on_device = std::any_of(payload.tensors().begin(), payload.tensors().end(),
                            [](const proto::Tensor& tensor) { return !tensor.on_device().device().empty(); });
    if (on_device) arrived.streams = tensor_backend()->enter_pool_streams();
  }
  auto tensors = tensor_backend()->decode(payload, std::move(buffers), any() ? &arrival : nullptr);
  if (!tensors.ok()) return tensors.status();
  arrived.tensors = *std::move(tensors);
  if (on_device) arrived.fence = tensor_backend()->record_fence(*arrived.tensors);
  return absl::OkStatus();
}

void to_proto(const DeviceMap& map, proto::Request& request) {
  for (const auto& [from, to] : map) {
    proto::DeviceEntry& entry = *request.mutable_device_map()->add_entries();
    entry.set_from(from.str());
    entry.set_to(to.str());
  }
}

absl::StatusOr<DeviceMap> device_map_of(const proto::Request& request) {
  const auto& entries = request.device_map().entries();
  if (entries.size() > kMaxEntries) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed request: its device map has ", entries.size(), " entries"));
  }
  DeviceMap map;
  for (const proto::DeviceEntry& entry : entries) {
    GRADWIRE_ASSIGN_OR_RETURN(Device from, Device::parse(entry.from()));
    GRADWIRE_ASSIGN_OR_RETURN(Device to, Device::parse(entry.to()));
    map.emplace(std::move(from), std::move(to));
  }
  GRADWIRE_RETURN_IF_ERROR(inverse(map).status());
  return map;
}

}  // namespace gradwire::rpc
