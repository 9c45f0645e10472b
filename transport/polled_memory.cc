#include "gradwire/transport/polled_memory.h"

#include <algorithm>
#include <utility>

namespace gradwire::transport {
namespace {

// Memory without data for this number of rounds is deactivated, unless little memory is active: then the next
// message is found without a doorbell if the thread polls again by the time it arrives.
constexpr int kIdleRounds = 256;
constexpr std::size_t kKept = 4;

}  // namespace

// The flag active_ makes sure that memory is in the list at most once. The relaxed load is the fast path of
// memory that is polled already. It may be wrong for memory that is just being deactivated; see
// deactivate_idle_in_loop().
void PolledMemory::activate(const std::shared_ptr<Pollable>& pollable) {
  if (pollable->active_.load(std::memory_order_relaxed) || pollable->active_.exchange(true)) return;
  MutexLock lock(mutex_);
  activated_.push_back(pollable);
  has_activated_.store(true);
}

// has_activated_ is reset with the lock held, so that no entry stays behind an unset flag. Newly activated
// memory is disarmed here, by the driver: the thread that activated it may be any.
void PolledMemory::adopt_activated_in_loop() {
  std::vector<std::shared_ptr<Pollable>> activated;
  {
    MutexLock lock(mutex_);
    activated.swap(activated_);
    has_activated_.store(false);
  }
  for (std::shared_ptr<Pollable>& pollable : activated) {
    pollable->idle_rounds_ = 0;
    pollable->disarm_in_loop();
    active_.push_back(std::move(pollable));
  }
}

void PolledMemory::forget_in_loop(const Pollable& pollable) {
  if (has_activated_.load()) adopt_activated_in_loop();
  // Only clear the entry: a caller may be iterating over the list.
  for (std::shared_ptr<Pollable>& entry : active_) {
    if (entry.get() == &pollable) entry = nullptr;
  }
}

const Pollable* PolledMemory::poll_each_in_loop() {
  const Pollable* found = nullptr;
  bool holes = false;
  // Iterate by index: poll_in_loop() may append to the list or clear entries.
  for (std::size_t i = 0; i < active_.size(); ++i) {
    Pollable* const pollable = active_[i].get();
    if (pollable == nullptr) {
      holes = true;
      continue;
    }
    // The cheap check first: most memory is idle in most rounds.
    if (!pollable->has_data_in_loop()) {
      ++pollable->idle_rounds_;
      continue;
    }
    // Its own poll_in_loop() may cause that it is forgotten.
    const std::shared_ptr<Pollable> kept = active_[i];
    kept->idle_rounds_ = 0;
    if (kept->poll_in_loop()) found = kept.get();
  }
  if (holes) std::erase(active_, nullptr);
  return found;
}

void PolledMemory::arm_in_loop() {
  for (const std::shared_ptr<Pollable>& pollable : active_) {
    if (pollable != nullptr) pollable->arm_in_loop();
  }
}

void PolledMemory::disarm_in_loop() {
  for (const std::shared_ptr<Pollable>& pollable : active_) {
    if (pollable != nullptr) pollable->disarm_in_loop();
  }
}

bool PolledMemory::has_data_in_loop() const {
  return has_activated_.load() ||
         std::any_of(active_.begin(), active_.end(), [](const std::shared_ptr<Pollable>& pollable) {
           return pollable != nullptr && pollable->has_data_in_loop();
         });
}

void PolledMemory::deactivate_idle_in_loop() {
  std::erase(active_, nullptr);
  std::size_t excess = active_.size() > kKept ? active_.size() - kKept : 0;
  if (excess == 0) return;
  std::erase_if(active_, [&](const std::shared_ptr<Pollable>& pollable) {
    if (pollable->idle_rounds_ < kIdleRounds || excess == 0) return false;
    --excess;
    // The memory is armed now (leave() calls this after arm_in_loop()). So data that arrives from now on
    // rings, and the handler of the doorbell activates it again.
    pollable->active_.store(false);
    return true;
  });
}

}  // namespace gradwire::transport
