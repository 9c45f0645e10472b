#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/nccl/group_watch.h"

namespace gradwire::collectives::nccl {

// The thread that looks at the groups of one world. Thread-safe.
class Watchdog {
 public:
  explicit Watchdog(Clock& clock = Clock::system());
  ~Watchdog();

  void watch(std::shared_ptr<GroupWatch> group);
  // It is neither looked at nor held any more when this returns.
  void forget(const GroupWatch* group);
  // Looks at all soon.
  void wake();

 private:
  void run();

  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<GroupWatch>> groups_ ABSL_GUARDED_BY(mutex_);
  const GroupWatch* looking_at_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gradwire::collectives::nccl
