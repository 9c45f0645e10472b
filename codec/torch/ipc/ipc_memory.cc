#include "gradwire/codec/torch/ipc/ipc_memory.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

using Allocations = std::vector<std::shared_ptr<OpenedMemories::Allocation>>;

// Whether no thread and no stream uses the allocation. Streams of a lost device use nothing any more.
bool is_unused(const std::shared_ptr<OpenedMemories::Allocation>& allocation) {
  std::erase_if(allocation->uses,
                [](const StreamFencePtr& fence) { return fence->reached().value_or(true); });
  return allocation.use_count() == 1 && allocation->uses.empty();
}

void move_unused(Allocations& from, Allocations& to) {
  std::erase_if(from, [&](std::shared_ptr<OpenedMemories::Allocation>& allocation) {
    if (!is_unused(allocation)) return false;
    to.push_back(std::move(allocation));
    return true;
  });
}

// The allocations of agents that have ended while streams still read them. Never destroyed: at the end of the
// process there is nothing left to do.
struct Orphans {
  Mutex mutex;
  Allocations allocations ABSL_GUARDED_BY(mutex);
};
Orphans& orphans() {
  static auto* const orphans = new Orphans;
  return *orphans;
}

}  // namespace

absl::StatusOr<std::shared_ptr<OpenedMemories::Allocation>> OpenedMemories::open(uint64_t worker,
                                                                                 c10::Device device,
                                                                                 const std::string& handle,
                                                                                 uint64_t size) {
  const Key key(worker, device.index(), handle);
  // Closed after the lock is released.
  Entries closed;
  MutexLock lock(mutex_);
  if (const auto found = index_.find(key); found != index_.end()) {
    const std::shared_ptr<Allocation>& allocation = found->second->second;
    if (allocation->size != size) {
      return absl::InvalidArgumentError(absl::StrCat("wrong size of its allocation: got ", size,
                                                     " bytes, but it was opened with ", allocation->size));
    }
    entries_.splice(entries_.begin(), entries_, found->second);
    return allocation;
  }
  evict_locked(kMaxUnused, closed);
  if (entries_.size() >= kMaxOpen) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many allocations of other processes are open: ", kMaxOpen));
  }
  // Opened under the lock, so that two threads do not open the same allocation.
  auto allocation = std::make_shared<Allocation>();
  allocation->size = size;
  GRADWIRE_ASSIGN_OR_RETURN(allocation->memory,
                            device::device_transfer(device.type())->open(device, handle, size));
  entries_.emplace_front(key, allocation);
  index_[key] = entries_.begin();
  return allocation;
}

void OpenedMemories::used(const Allocations& allocations, const StreamFencePtr& fence) {
  if (fence == nullptr) return;
  MutexLock lock(mutex_);
  for (const std::shared_ptr<Allocation>& allocation : allocations) {
    std::erase_if(allocation->uses, [](const StreamFencePtr& old) { return old->reached().value_or(true); });
    allocation->uses.push_back(fence);
  }
}

void OpenedMemories::evict_locked(std::size_t keep, Entries& closed) {
  auto next = entries_.end();
  while (entries_.size() > keep && next != entries_.begin()) {
    const auto oldest = std::prev(next);
    if (!is_unused(oldest->second)) {
      next = oldest;
      continue;
    }
    index_.erase(oldest->first);
    closed.splice(closed.end(), entries_, oldest);
  }
}

void OpenedMemories::forget(uint64_t worker) {
  Allocations closed;
  MutexLock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto here = entry++;
    if (std::get<0>(here->first) != worker) continue;
    index_.erase(here->first);
    closing_.push_back(std::move(here->second));
    entries_.erase(here);
  }
  move_unused(closing_, closed);
}

void OpenedMemories::close() {
  Allocations left;
  {
    MutexLock lock(mutex_);
    left.swap(closing_);
    for (auto& [key, allocation] : entries_) left.push_back(std::move(allocation));
    entries_.clear();
    index_.clear();
  }
  {
    MutexLock lock(orphans().mutex);
    for (auto& allocation : left) orphans().allocations.push_back(std::move(allocation));
  }
  (void)sweep();
}

std::size_t OpenedMemories::sweep() {
  Allocations closed;
  std::size_t left = 0;
  {
    MutexLock lock(mutex_);
    move_unused(closing_, closed);
    left = closing_.size();
  }
  MutexLock lock(orphans().mutex);
  move_unused(orphans().allocations, closed);
  return left + orphans().allocations.size();
}

}  // namespace gradwire::rpc
