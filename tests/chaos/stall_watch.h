#pragma once

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"

namespace chaos {

// Notices when the machine as a whole stood still, or gave this process nothing for long: a virtual machine
// that is moved, a laptop that slept. What is measured meanwhile says nothing of the programs. Thread-safe.
class StallWatch {
 public:
  StallWatch();
  ~StallWatch();

  // How much of the time since `start` (on chaos::monotonic_us) was lost.
  absl::Duration since(int64_t start_us);

 private:
  void watch();

  std::atomic<bool> ending_{false};
  gradwire::Mutex mutex_;
  std::vector<std::pair<int64_t, int64_t>> stalls_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace chaos
