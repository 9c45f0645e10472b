#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire {

// An epoll(7): waits for descriptors, each of which its user knows by a number. Thread-safe once it is made,
// as the system's calls are. Owns no descriptor that is added; whoever adds one removes it before closing it.
class Epoll {
 public:
  // Unavailable when the system has no descriptor left.
  static absl::StatusOr<Epoll> create();

  // `events` as epoll has them: EPOLLIN, EPOLLOUT, EPOLLET (0: errors and hang-ups only). PermissionDenied
  // for a plain file, which is always ready and cannot be waited for; Unavailable with any other cause.
  absl::Status add(int fd, uint32_t events, uint64_t id) const;
  void change(int fd, uint32_t events, uint64_t id) const;
  void remove(int fd) const;

  // Waits for events for at most `milliseconds`; -1: no limit. Returns them at the front of `room`: none when
  // the time is up or a signal interrupted the wait. `data.u64` is the number.
  absl::Span<const epoll_event> wait(absl::Span<epoll_event> room, int milliseconds) const;

  // For another one that watches this one.
  int fd() const { return epoll_.get(); }

 private:
  explicit Epoll(Descriptor epoll) : epoll_(std::move(epoll)) {}

  Descriptor epoll_;
};

}  // namespace gradwire
