#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/nccl/group_watch.h"

namespace gradwire::collectives::nccl {

// The thread that polls the groups of one world. Thread-safe.
class Watchdog {
 public:
  explicit Watchdog(Clock& clock = Clock::system());
  ~Watchdog();

  // Polls this group from now on.
  void watch(std::shared_ptr<GroupWatch> group);
  // Removes a group. After the call returns, the group is not polled and no reference to it is held.
  void forget(const GroupWatch* group);
  // Makes the thread poll all groups soon.
  void wake();

 private:
  void run();

  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<GroupWatch>> groups_ ABSL_GUARDED_BY(mutex_);
  // The group that the thread polls at this moment, without the lock.
  const GroupWatch* polled_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gradwire::collectives::nccl
