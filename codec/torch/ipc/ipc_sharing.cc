#include "gradwire/codec/torch/ipc/ipc_sharing.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc {

absl::StatusOr<std::string> IpcSharing::identity(const Device& device) {
  const c10::Device local = device;
  device::DeviceTransfer* const transfer = device::device_transfer(local.type());
  if (transfer == nullptr) {
    return absl::UnavailableError(absl::StrCat("this program shares no memory of devices of the kind \"",
                                               device.kind(), "\" between processes"));
  }
  GRADWIRE_RETURN_IF_ERROR(transfer->can_share(local));
  GRADWIRE_ASSIGN_OR_RETURN(std::string identity, transfer->identity(local));
  if (identity.empty()) return absl::UnavailableError("the driver does not name the physical device");
  MutexLock lock(mutex_);
  by_identity_.try_emplace(identity, local);
  return identity;
}

absl::StatusOr<c10::Device> IpcSharing::find(const std::string& identity) {
  {
    MutexLock lock(mutex_);
    if (const auto found = by_identity_.find(identity); found != by_identity_.end()) return found->second;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("its memory is on the physical device \"", absl::CEscape(identity),
                   "\", but the devices of this worker are ", to_string(devices_)));
}

c10::Stream IpcSharing::release_stream(c10::Device device) {
  MutexLock lock(mutex_);
  const auto found = release_streams_.find(device.index());
  if (found != release_streams_.end()) return found->second;
  // The streams of high priority are used by little else, so what waits for another process delays nothing.
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  release_streams_.emplace(device.index(), stream);
  return stream;
}

void IpcSharing::forget(uint64_t worker) {
  made_events_->forget(worker);
  opened_events_.forget(worker);
  memories_.forget(worker);
}

void IpcSharing::close() {
  made_events_->close();
  opened_events_.close();
  memories_.close();
}

}  // namespace gradwire::rpc
