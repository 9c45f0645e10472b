#include "gradwire/transport/polled_memory.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"

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
  // Without memory the data is found by its doorbell.
  absl::Cleanup inactive = [&] { pollable->active_.store(false); };
  MutexLock lock(mutex_);
  activated_.push_back(pollable);
  has_activated_.store(true);
  std::move(inactive).Cancel();
}

// has_activated_ is reset with the lock held, so that no entry stays behind an unset flag. Newly activated
// memory is disarmed here, by the driver: the thread that activated it may be any.
void PolledMemory::adopt_activated_in_loop() {
  std::vector<std::shared_ptr<Pollable>> activated;
  {
    MutexLock lock(mutex_);
    // First what may throw: an entry that is in neither list would never be polled again. Without memory the
    // next round tries again.
    const std::size_t size = active_.size() + activated_.size();
    if (!run_contained("polling more memory", [&] { active_.reserve(size); })) return;
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
  {
    MutexLock lock(mutex_);
    std::erase_if(activated_, [&](const auto& entry) { return entry.get() == &pollable; });
  }
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
    note_duty("a connection over shared memory");
    try {
      if (kept->poll_in_loop()) found = kept.get();
    } catch (...) {
      kept->failed_in_loop(caught("handling what has arrived"));
    }
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

std::vector<Pollable*> PolledMemory::idle() const {
  std::vector<Pollable*> idle;
  // Without memory for the list, what is missing in it stays active.
  run_contained("finding idle memory", [&] {
    for (const std::shared_ptr<Pollable>& pollable : active_) {
      if (idle.size() + kKept >= active_.size()) break;
      if (pollable != nullptr && pollable->idle_rounds_ >= kIdleRounds) idle.push_back(pollable.get());
    }
  });
  return idle;
}

// The memory is armed now. So data that arrives from now on rings, and the handler of the doorbell activates
// the memory again. Data that arrived just before the memory was armed did not ring: such memory stays
// active.
void PolledMemory::deactivate_idle_in_loop() {
  std::erase(active_, nullptr);
  if (active_.size() <= kKept) return;
  const std::vector<Pollable*> candidates = idle();
  auto next = candidates.begin();
  // The candidates have the order of the list.
  std::erase_if(active_, [&](const std::shared_ptr<Pollable>& pollable) {
    if (next == candidates.end() || pollable.get() != *next) return false;
    ++next;
    if (pollable->has_data_in_loop()) return false;
    pollable->active_.store(false);
    return true;
  });
}

// The order is that of EventLoop::leave(): arm, fence, check, and then deactivate.
void PolledMemory::retire_idle_in_loop() {
  std::erase(active_, nullptr);
  if (active_.size() <= kKept) return;
  const std::vector<Pollable*> armed = idle();
  if (armed.empty()) return;
  for (Pollable* const pollable : armed) pollable->arm_in_loop();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  deactivate_idle_in_loop();
  // The thread polls what is left.
  for (const std::shared_ptr<Pollable>& pollable : active_) pollable->disarm_in_loop();
}

}  // namespace gradwire::transport
