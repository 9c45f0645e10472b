#include "gradwire/gateway/serving/stalls.h"

#include <utility>

namespace gradwire::gateway {

Stalls::Watch::Watch(Stalls& stalls, std::function<void()> on_stall)
    : stalls_(stalls), on_stall_(std::move(on_stall)) {
  MutexLock lock(stalls_.mutex_);
  stalls_.watches_.insert(this);
}

Stalls::Watch::~Watch() {
  MutexLock lock(stalls_.mutex_);
  stalls_.watches_.erase(this);
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

// The lock is held while on_stall runs, so that the stream exists. on_stall only asks gRPC to cancel the
// stream.
void Stalls::check() {
  const absl::Time now = now_();
  MutexLock lock(mutex_);
  for (Watch* watch : watches_) {
    bool stalled = false;
    {
      MutexLock watch_lock(watch->mutex_);
      stalled = now - watch->since_ >= timeout_;
      if (stalled) watch->since_ = absl::InfiniteFuture();
    }
    if (stalled) watch->on_stall_();
  }
}

}  // namespace gradwire::gateway
