#include "gradwire/gateway/serving/stalls.h"

#include <utility>
#include <vector>

namespace gradwire::gateway {

// The problem: a watch must not be destroyed while its on_stall runs, so check() holds the lock then. But
// on_stall cancels a stream, and gRPC may run callbacks of any stream on the same thread before that returns.
// They make and destroy watches. So this thread changes the set without taking its lock a second time.
template <class F>
void Stalls::change(F function) {
  if (checking_.load() == std::this_thread::get_id()) {
    function();
    return;
  }
  MutexLock lock(mutex_);
  function();
}

Stalls::Watch::Watch(Stalls& stalls, std::function<void()> on_stall)
    : stalls_(stalls), on_stall_(std::move(on_stall)) {
  stalls_.change([this] { stalls_.watches_.insert(this); });
}

Stalls::Watch::~Watch() {
  stalls_.change([this] { stalls_.watches_.erase(this); });
}

void Stalls::Watch::arm() {
  const absl::Time now = stalls_.now_();
  MutexLock lock(mutex_);
  since_ = now;
}

void Stalls::Watch::disarm() {
  MutexLock lock(mutex_);
  since_ = absl::InfiniteFuture();
}

void Stalls::check() {
  const absl::Time now = now_();
  MutexLock lock(mutex_);
  std::vector<Watch*> stalled;
  for (Watch* watch : watches_) {
    MutexLock watch_lock(watch->mutex_);
    if (now - watch->since_ < timeout_) continue;
    watch->since_ = absl::InfiniteFuture();
    stalled.push_back(watch);
  }
  checking_ = std::this_thread::get_id();
  for (Watch* watch : stalled) {
    // An earlier on_stall may have destroyed it.
    if (watches_.contains(watch)) watch->on_stall_();
  }
  checking_ = std::thread::id();
}

}  // namespace gradwire::gateway
