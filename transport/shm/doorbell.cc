#include "gradwire/transport/shm/doorbell.h"

#include <algorithm>

#include "gradwire/base/clock.h"

namespace gradwire::transport {

void Doorbell::ring() {
  if (socket_->ring() || due_.exchange(true)) return;
  connection_.post([this] { ring_later_in_loop(kFirstPause); });
}

// due_ is cleared before the attempt. If another thread finds in between that the kernel has no memory, it
// has posted a task, and this timer ends.
void Doorbell::ring_later_in_loop(absl::Duration pause) {
  if (ended_) return;
  timer_ = connection_.schedule_in_loop(Clock::system().now() + pause, [this, pause] {
    timer_ = 0;
    due_.store(false);
    if (socket_->ring() || due_.exchange(true)) return;
    ring_later_in_loop(std::min(2 * pause, kLongestPause));
  });
}

void Doorbell::end_in_loop() {
  ended_ = true;
  connection_.loop().cancel_in_loop(std::exchange(timer_, 0));
}

}  // namespace gradwire::transport
