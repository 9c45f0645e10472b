#include "gradwire/collectives/nccl/nccl_connect.h"

#include <cuda_runtime_api.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/group/agreement.h"
#include "gradwire/collectives/nccl/nccl_status.h"

namespace gradwire::collectives::nccl {
namespace {

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
    // All zeros means that the GPU has no UUID, as some virtual GPUs do.
    if (uuid.find_first_not_of('\0') != absl::string_view::npos) one.uuid = absl::BytesToHexString(uuid);
    record.devices.push_back(std::move(one));
  }
  return record;
}

// Rank 0 in `gathering` makes the id, and writes it to the store. The others wait in slices, so that they
// notice the deadline and a failure of the group.
absl::StatusOr<ncclUniqueId> share_id(const Gathering& gathering) {
  const std::string key = absl::StrCat(gathering.key, "/id");
  ncclUniqueId id;
  if (gathering.index == 0) {
    GRADWIRE_RETURN_IF_ERROR(to_status(ncclGetUniqueId(&id), "ncclGetUniqueId"));
    GRADWIRE_RETURN_IF_ERROR(
        gathering.store.try_set(key, absl::string_view(id.internal, sizeof(id.internal))));
    return id;
  }
  GRADWIRE_ASSIGN_OR_RETURN(const std::string text,
                            wait_for_key(gathering.store, key, gathering.deadline, gathering.interrupted));
  if (text.size() != sizeof(id.internal)) {
    return absl::InternalError(absl::StrCat("malformed NCCL id from the first rank: got ", text.size(),
                                            " bytes, expected ", sizeof(id.internal),
                                            "; all ranks must use the same version of NCCL"));
  }
  std::memcpy(id.internal, text.data(), text.size());
  return id;
}

}  // namespace

absl::StatusOr<std::shared_ptr<NcclComms>> connect(const Gathering& gathering,
                                                   const std::vector<c10::Device>& devices) {
  GRADWIRE_RETURN_IF_ERROR(gather_records(gathering, own_record(devices)).status());
  GRADWIRE_ASSIGN_OR_RETURN(const ncclUniqueId id, share_id(gathering));
  const int each = static_cast<int>(devices.size());
  return NcclComms::create(id, static_cast<int>(gathering.index) * each,
                           static_cast<int>(gathering.ranks.size()) * each, devices,
                           {gathering.deadline, gathering.interrupted});
}

}  // namespace gradwire::collectives::nccl
