#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/security/warning_limit.h"

namespace gradwire::rpc {

// A limit of CallerLimits that a caller has reached.
struct CallerLimit {
  // The things that are counted, in the plural: "calls in flight".
  absl::string_view what;
  // Its member of CallerLimits.
  absl::string_view option;
  uint64_t value = 0;
};

// Refuses what callers want above their limits. Thread-safe.
class LimitRefusals {
 public:
  // Returns ResourceExhausted, which names the limit, its option, the caller and the worker `at`. Counts the
  // refusal, and logs it unless another one of this caller was logged in the last minute.
  absl::Status refuse(const Worker& from, const Worker& at, const CallerLimit& limit, absl::Time now);

  // Number of refusals.
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};

  Mutex mutex_;
  // By the name of the caller.
  security::WarningLimit warnings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
