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

// Waits for events on descriptors and runs their callbacks on the thread that calls run_once(). For one
// thread only. Does not own the descriptors; the caller that adds one must remove it before closing it.
class FdLoop {
 public:
  using Callback = std::function<void(uint32_t events)>;

  static absl::StatusOr<FdLoop> create();

  // Adds a descriptor. `events` are those of epoll (EPOLLIN, EPOLLOUT; 0: only errors and hang-ups),
  // level-triggered. Errors are those of Epoll::add().
  absl::Status add(int fd, uint32_t events, Callback callback);
  // Removes a descriptor, if it was added. A callback may remove any descriptor, its own included.
  void remove(int fd);

  // Waits for events, for at most `timeout`, and runs the callbacks.
  void run_once(absl::Duration timeout);

 private:
  explicit FdLoop(Epoll epoll) : epoll_(std::move(epoll)) {}

  Epoll epoll_;
  // Shared, so that a callback that removes itself exists until it returns.
  std::map<int, std::shared_ptr<Callback>> callbacks_;
};

}  // namespace gradwire::tools
