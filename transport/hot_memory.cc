#include "gradwire/transport/hot_memory.h"

#include <algorithm>
#include <utility>

namespace gradwire::transport {
namespace {

// Memory that brought nothing for so many rounds is left to its writer's ringing.
constexpr int kQuietRounds = 256;

}  // namespace

void HotMemory::heat(const std::shared_ptr<Pollable>& pollable) {
  if (pollable->hot_.load(std::memory_order_relaxed) || pollable->hot_.exchange(true)) return;
  MutexLock lock(mutex_);
  heated_.push_back(pollable);
  has_heated_.store(true);
}

void HotMemory::adopt_heated_in_loop() {
  std::vector<std::shared_ptr<Pollable>> heated;
  {
    MutexLock lock(mutex_);
    heated.swap(heated_);
    has_heated_.store(false);
  }
  for (std::shared_ptr<Pollable>& pollable : heated) {
    pollable->quiet_rounds_ = 0;
    pollable->disarm_in_loop();
    hot_.push_back(std::move(pollable));
  }
}

void HotMemory::forget_in_loop(const Pollable& pollable) {
  if (has_heated_.load()) adopt_heated_in_loop();
  // The list may be being walked.
  for (std::shared_ptr<Pollable>& entry : hot_) {
    if (entry.get() == &pollable) entry = nullptr;
  }
}

bool HotMemory::poll_each_in_loop() {
  bool any = false;
  bool holes = false;
  // By index: what is polled may add to the list, or make holes in it.
  for (std::size_t i = 0; i < hot_.size(); ++i) {
    Pollable* const pollable = hot_[i].get();
    if (pollable == nullptr) {
      holes = true;
      continue;
    }
    if (!pollable->has_news_in_loop()) {
      ++pollable->quiet_rounds_;
      continue;
    }
    // It may be forgotten by what it runs.
    const std::shared_ptr<Pollable> kept = hot_[i];
    kept->quiet_rounds_ = 0;
    if (kept->poll_in_loop()) any = true;
  }
  if (holes) std::erase(hot_, nullptr);
  return any;
}

void HotMemory::arm_in_loop() {
  for (const std::shared_ptr<Pollable>& pollable : hot_) {
    if (pollable != nullptr) pollable->arm_in_loop();
  }
}

void HotMemory::disarm_in_loop() {
  for (const std::shared_ptr<Pollable>& pollable : hot_) {
    if (pollable != nullptr) pollable->disarm_in_loop();
  }
}

bool HotMemory::has_news_in_loop() const {
  return has_heated_.load() ||
         std::any_of(hot_.begin(), hot_.end(), [](const std::shared_ptr<Pollable>& pollable) {
           return pollable != nullptr && pollable->has_news_in_loop();
         });
}

void HotMemory::cool_in_loop() {
  std::erase_if(hot_, [](const std::shared_ptr<Pollable>& pollable) {
    if (pollable == nullptr) return true;
    if (pollable->quiet_rounds_ < kQuietRounds) return false;
    pollable->hot_.store(false);
    return true;
  });
}

}  // namespace gradwire::transport
