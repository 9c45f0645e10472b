#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire {

// An epoll(7) instance: waits for events on descriptors, each of which has an id chosen by the user.
// Thread-safe, as the system calls are. It does not own the added descriptors: the caller removes each one
// before it closes it.
class Epoll {
 public:
  // ResourceExhausted, with the limit, if the system has no free descriptors.
  static absl::StatusOr<Epoll> create();

  // `events`: flags of epoll, such as EPOLLIN, EPOLLOUT and EPOLLET; 0 reports errors and hang-ups only.
  // PermissionDenied for a plain file, which is always ready and cannot be waited for. ResourceExhausted at
  // a limit; Unavailable for any other failure.
  absl::Status add(int fd, uint32_t events, uint64_t id) const;
  void change(int fd, uint32_t events, uint64_t id) const;
  void remove(int fd) const;

  // Waits for events for at most `milliseconds`; -1: no limit. Returns the events at the front of `room`:
  // none after a timeout or if a signal interrupted the wait. `data.u64` is the id.
  absl::Span<const epoll_event> wait(absl::Span<epoll_event> room, int milliseconds) const;
  // The same for at most `time`, rounded up to a nanosecond, or to a millisecond on kernels before 5.11.
  absl::Span<const epoll_event> wait_for(absl::Span<epoll_event> room, absl::Duration time) const;

  // The descriptor of the instance, so that another epoll can wait for this one.
  int fd() const { return epoll_.get(); }

 private:
  explicit Epoll(Descriptor epoll) : epoll_(std::move(epoll)) {}

  Descriptor epoll_;
};

}  // namespace gradwire
