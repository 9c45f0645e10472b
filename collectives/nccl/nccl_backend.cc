// The backend "nccl".
#include <cuda_runtime_api.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/group/backend_registry.h"
#include "gradwire/collectives/nccl/device_records.h"
#include "gradwire/collectives/nccl/nccl_group.h"
#include "gradwire/collectives/nccl/nccl_status.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::collectives::nccl {

RankRecord own_record(const std::vector<c10::Device>& devices) {
  RankRecord record;
  record.process = this_process();
  for (const c10::Device device : devices) {
    cudaDeviceProp properties;
    throw_if_error(
        to_status(cudaGetDeviceProperties(&properties, device.index()), "cudaGetDeviceProperties"));
    std::array<char, 32> bus = {};
    throw_if_error(to_status(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device.index()),
                             "cudaDeviceGetPCIBusId"));
    DeviceRecord one;
    one.index = device.index();
    one.bus = absl::AsciiStrToLower(bus.data());
    const absl::string_view uuid(properties.uuid.bytes, sizeof(properties.uuid.bytes));
    // All zeros: some virtual GPUs have none.
    if (uuid.find_first_not_of('\0') != absl::string_view::npos) one.uuid = absl::BytesToHexString(uuid);
    record.devices.push_back(std::move(one));
  }
  return record;
}

absl::StatusOr<ncclUniqueId> share_id(store::Store& store, const std::string& key, bool first,
                                      const Patience& patience) {
  ncclUniqueId id;
  if (first) {
    GRADWIRE_RETURN_IF_ERROR(to_status(ncclGetUniqueId(&id), "ncclGetUniqueId"));
    GRADWIRE_RETURN_IF_ERROR(store.try_set(key, absl::string_view(id.internal, sizeof(id.internal))));
    return id;
  }
  GRADWIRE_ASSIGN_OR_RETURN(const std::string text,
                            wait_for_key(store, key, patience.deadline, patience.interrupted));
  if (text.size() != sizeof(id.internal)) {
    return absl::InternalError("what the first rank put into the store is no id of NCCL's");
  }
  std::memcpy(id.internal, text.data(), text.size());
  return id;
}

namespace {

absl::StatusOr<std::unique_ptr<GroupBackend>> make(const BackendContext& context) {
  if (!context.options.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the nccl backend has no option ",
                                                   context.options.begin()->first,
                                                   "; NCCL reads its own from the environment (NCCL_...)"));
  }
  auto watchdog = std::static_pointer_cast<Watchdog>(context.world_state);
  if (watchdog == nullptr) watchdog = std::make_shared<Watchdog>();
  // A cpu backend may use the store beside it.
  BackendContext own = context;
  own.store = std::make_shared<store::PrefixStore>("nccl", context.store);
  return std::make_unique<NcclGroup>(own, std::move(watchdog));
}

[[maybe_unused]] const bool registered = [] {
  register_backend(Backend::kNccl, make);
  return true;
}();

}  // namespace
}  // namespace gradwire::collectives::nccl
