#include "gradwire/tools/launch/io/loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

namespace gradwire::tools {

absl::StatusOr<EventLoop> EventLoop::create() {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return errno_status("cannot make an epoll", errno);
  return EventLoop(std::move(epoll));
}

absl::Status EventLoop::add(int fd, uint32_t events, Callback callback) {
  epoll_event event{.events = events, .data = {.fd = fd}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    if (errno == EPERM) return absl::PermissionDeniedError("a plain file cannot be waited for");
    return errno_status("cannot wait for a descriptor", errno);
  }
  callbacks_[fd] = std::make_shared<Callback>(std::move(callback));
  return absl::OkStatus();
}

void EventLoop::remove(int fd) {
  if (callbacks_.erase(fd) > 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::run_once(absl::Duration timeout) {
  epoll_event events[64];
  // Rounded up: waking a moment too early would spin until the deadline.
  const int64_t milliseconds = absl::ToInt64Milliseconds(
      absl::Ceil(std::clamp(timeout, absl::ZeroDuration(), absl::Hours(1)), absl::Milliseconds(1)));
  const int count = epoll_wait(epoll_.get(), events, 64, static_cast<int>(milliseconds));
  for (int i = 0; i < count; ++i) {
    const auto found = callbacks_.find(events[i].data.fd);
    if (found == callbacks_.end()) continue;
    const std::shared_ptr<Callback> callback = found->second;
    (*callback)(events[i].events);
  }
}

}  // namespace gradwire::tools
