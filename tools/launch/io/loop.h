#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/io/epoll.h"

namespace gradwire::tools {

// Waits for descriptors and calls back, on the thread that calls run_once(). One thread only. Owns no
// descriptor that is added; whoever adds one removes it before closing it.
class EventLoop {
 public:
  using Callback = std::function<void(uint32_t events)>;

  static absl::StatusOr<EventLoop> create();

  // `events` as epoll has them (EPOLLIN, EPOLLOUT; 0: only errors and hang-ups), level-triggered.
  // Errors as Epoll::add has them.
  absl::Status add(int fd, uint32_t events, Callback callback);
  // Nothing if it is not there. A callback may remove any descriptor, its own included.
  void remove(int fd);

  // Waits until something happens or the time is up, and calls back.
  void run_once(absl::Duration timeout);

 private:
  explicit EventLoop(Epoll epoll) : epoll_(std::move(epoll)) {}

  Epoll epoll_;
  // Shared, so that a callback that removes itself lives until it returns.
  std::map<int, std::shared_ptr<Callback>> callbacks_;
};

}  // namespace gradwire::tools
