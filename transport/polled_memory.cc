#include "gradwire/transport/polled_memory.h"

#include <algorithm>
#include <utility>

namespace gradwire::transport {
namespace {

// Memory that brought nothing for so many rounds is left to its writer's ringing.
constexpr int kQuietRounds = 256;

}  // namespace

void PolledMemory::activate(const std::shared_ptr<Pollable>& pollable) {
  if (pollable->active_.load(std::memory_order_relaxed) || pollable->active_.exchange(true)) return;
  MutexLock lock(mutex_);
  activated_.push_back(pollable);
  has_activated_.store(true);
}

void PolledMemory::adopt_activated_in_loop() {
  std::vector<std::shared_ptr<Pollable>> activated;
  {
    MutexLock lock(mutex_);
    activated.swap(activated_);
    has_activated_.store(false);
  }
  for (std::shared_ptr<Pollable>& pollable : activated) {
    pollable->quiet_rounds_ = 0;
    pollable->disarm_in_loop();
    active_.push_back(std::move(pollable));
  }
}

void PolledMemory::forget_in_loop(const Pollable& pollable) {
  if (has_activated_.load()) adopt_activated_in_loop();
  // The list may be being walked.
  for (std::shared_ptr<Pollable>& entry : active_) {
    if (entry.get() == &pollable) entry = nullptr;
  }
}

bool PolledMemory::poll_each_in_loop() {
  bool any = false;
  bool holes = false;
  // By index: what is polled may add to the list, or make holes in it.
  for (std::size_t i = 0; i < active_.size(); ++i) {
    Pollable* const pollable = active_[i].get();
    if (pollable == nullptr) {
      holes = true;
      continue;
    }
    if (!pollable->has_data_in_loop()) {
      ++pollable->quiet_rounds_;
      continue;
    }
    // It may be forgotten by what it runs.
    const std::shared_ptr<Pollable> kept = active_[i];
    kept->quiet_rounds_ = 0;
    if (kept->poll_in_loop()) any = true;
  }
  if (holes) std::erase(active_, nullptr);
  return any;
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

void PolledMemory::cool_in_loop() {
  std::erase_if(active_, [](const std::shared_ptr<Pollable>& pollable) {
    if (pollable == nullptr) return true;
    if (pollable->quiet_rounds_ < kQuietRounds) return false;
    pollable->active_.store(false);
    return true;
  });
}

}  // namespace gradwire::transport
