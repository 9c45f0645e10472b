#pragma once

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// The interface to a framework for the cases in which a worker is lost. All frameworks run the same steps.
class LossObserver {
 public:
  virtual ~LossObserver() = default;
  // Returns the process id of worker `rank`.
  virtual int64_t process_of(int rank) = 0;
  // Begins a call that worker `rank` answers after this time at the earliest. The returned function waits for
  // the answer, and throws if the call failed.
  virtual absl::AnyInvocable<void()> nap_async(int rank, int64_t microseconds) = 0;
  // Whether the framework has a function that reports that a worker is lost.
  virtual bool can_detect_loss() const = 0;
  // Whether worker `rank` is permanently lost. Called on a separate thread.
  virtual bool is_lost(int rank) = 0;
};

// Runs the cases killed_peer and cut_link, in which worker 1 is lost. The figures are the times from the loss
// until the last of several calls in flight has failed (in_flight_failed_ms) and until the framework reports
// the loss (noticed_ms, if it can). Throws if a call is answered, or if the loss is not reported within 90 s.
Measurement run_loss(LossObserver& observer, const Task& task);

}  // namespace gradwire::bench
