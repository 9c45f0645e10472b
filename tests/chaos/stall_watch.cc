#include "gradwire/tests/chaos/stall_watch.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "gradwire/tests/chaos/call_log.h"

namespace chaos {
namespace {

constexpr int64_t kTickUs = 10000;
constexpr int64_t kStallUs = 250000;

}  // namespace

StallWatch::StallWatch() : thread_([this] { watch(); }) {}

StallWatch::~StallWatch() {
  ending_.store(true);
  thread_.join();
}

void StallWatch::watch() {
  int64_t last = monotonic_us();
  while (!ending_.load()) {
    absl::SleepFor(absl::Microseconds(kTickUs));
    const int64_t now = monotonic_us();
    if (now - last > kStallUs) {
      gradwire::MutexLock lock(mutex_);
      stalls_.emplace_back(last, now);
    }
    last = now;
  }
}

absl::Duration StallWatch::since(int64_t start_us) {
  gradwire::MutexLock lock(mutex_);
  int64_t lost = 0;
  for (const auto& [from, to] : stalls_) lost += std::max<int64_t>(0, to - std::max(from, start_us));
  return absl::Microseconds(lost);
}

}  // namespace chaos
