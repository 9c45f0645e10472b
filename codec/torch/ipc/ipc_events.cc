#include "gradwire/codec/torch/ipc/ipc_events.h"

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

}  // namespace gradwire::rpc
