#pragma once

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"

namespace chaos {

// Notices when this process could not run for a long time, for example because a virtual machine was moved or
// a laptop slept. Times that were measured meanwhile say nothing about the programs. Thread-safe.
class StallWatch {
 public:
  StallWatch();
  ~StallWatch();

  // Returns how much of the time since `start_us` (on chaos::monotonic_us) the process could not run.
  absl::Duration since(int64_t start_us);

 private:
  void watch();

  std::atomic<bool> ending_{false};
  gradwire::Mutex mutex_;
  std::vector<std::pair<int64_t, int64_t>> stalls_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace chaos
