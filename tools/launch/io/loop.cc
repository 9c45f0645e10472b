#include "gradwire/tools/launch/io/loop.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::tools {

absl::StatusOr<FdLoop> FdLoop::create() {
  GRADWIRE_ASSIGN_OR_RETURN(Epoll epoll, Epoll::create());
  return FdLoop(std::move(epoll));
}

absl::Status FdLoop::add(int fd, uint32_t events, Callback callback) {
  GRADWIRE_RETURN_IF_ERROR(epoll_.add(fd, events, static_cast<uint64_t>(fd)));
  callbacks_[fd] = std::make_shared<Callback>(std::move(callback));
  return absl::OkStatus();
}

void FdLoop::remove(int fd) {
  if (callbacks_.erase(fd) > 0) epoll_.remove(fd);
}

void FdLoop::run_once(absl::Duration timeout) {
  epoll_event events[64];
  // Round up: waking a moment too early would make the caller spin until its deadline.
  const int64_t milliseconds = absl::ToInt64Milliseconds(
      absl::Ceil(std::clamp(timeout, absl::ZeroDuration(), absl::Hours(1)), absl::Milliseconds(1)));
  for (const epoll_event& event : epoll_.wait(absl::MakeSpan(events), static_cast<int>(milliseconds))) {
    const auto found = callbacks_.find(static_cast<int>(event.data.u64));
    if (found == callbacks_.end()) continue;
    // The reference keeps the callback alive if it removes its own descriptor. A callback that an earlier
    // one of this batch has removed is not found above.
    const std::shared_ptr<Callback> callback = found->second;
    (*callback)(event.events);
  }
}

}  // namespace gradwire::tools
