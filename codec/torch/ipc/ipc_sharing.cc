#include "gradwire/codec/torch/ipc/ipc_sharing.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc {

absl::StatusOr<EventPair> MadeEvents::take(uint64_t worker, c10::Device device) {
  {
    MutexLock lock(mutex_);
    std::vector<EventPair>& free = free_[{worker, device.index()}];
    if (!free.empty()) {
      // The pair that was given back last: the receiver has opened it already.
      EventPair events = std::move(free.back());
      free.pop_back();
      return events;
    }
  }
  device::DeviceTransfer& transfer = *device::device_transfer(device.type());
  EventPair events;
  GRADWIRE_ASSIGN_OR_RETURN(events.ready, transfer.make_event(device));
  GRADWIRE_ASSIGN_OR_RETURN(events.consumed, transfer.make_event(device));
  return events;
}

void MadeEvents::give(uint64_t worker, c10::Device device, EventPair events) {
  // If it is not kept, it is destroyed after the lock is released.
  MutexLock lock(mutex_);
  if (closed_ || forgotten_.contains(worker)) return;
  std::vector<EventPair>& free = free_[{worker, device.index()}];
  if (free.size() < kMaxFree) free.push_back(std::move(events));
}

void MadeEvents::forget(uint64_t worker) {
  std::vector<std::vector<EventPair>> dropped;
  MutexLock lock(mutex_);
  forgotten_.insert(worker);
  absl::erase_if(free_, [&](auto& entry) {
    if (entry.first.first != worker) return false;
    dropped.push_back(std::move(entry.second));
    return true;
  });
}

void MadeEvents::close() {
  decltype(free_) dropped;
  MutexLock lock(mutex_);
  closed_ = true;
  dropped.swap(free_);
}

absl::StatusOr<std::unique_ptr<device::SharedEvent>> OpenedEvents::take(uint64_t worker, c10::Device device,
                                                                        const std::string& handle) {
  {
    MutexLock lock(mutex_);
    const auto events = kept_.find(worker);
    if (events != kept_.end()) {
      const auto found = events->second.find(Key(device.index(), handle));
      if (found != events->second.end()) {
        std::unique_ptr<device::SharedEvent> event = std::move(found->second);
        events->second.erase(found);
        return event;
      }
    }
  }
  return device::device_transfer(device.type())->open_event(device, handle);
}

void OpenedEvents::give(uint64_t worker, c10::Device device, const std::string& handle,
                        std::unique_ptr<device::SharedEvent> event) {
  MutexLock lock(mutex_);
  if (closed_ || forgotten_.contains(worker)) return;
  auto& kept = kept_[worker];
  if (kept.size() < kMaxKept) kept.try_emplace(Key(device.index(), handle), std::move(event));
}

void OpenedEvents::forget(uint64_t worker) {
  decltype(kept_)::mapped_type dropped;
  MutexLock lock(mutex_);
  forgotten_.insert(worker);
  const auto found = kept_.find(worker);
  if (found == kept_.end()) return;
  dropped = std::move(found->second);
  kept_.erase(found);
}

void OpenedEvents::close() {
  decltype(kept_) dropped;
  MutexLock lock(mutex_);
  closed_ = true;
  dropped.swap(kept_);
}

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
