#pragma once

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "gradwire/tools/bench/run/participant.h"

namespace gradwire::bench {

// What the cases in which a worker is lost need of a framework. Both ours and the peer's run the same steps.
class LossObserver {
 public:
  virtual ~LossObserver() = default;
  // The process of worker `rank`.
  virtual int64_t process_of(int rank) = 0;
  // Begins a call that takes worker `rank` at least so long; the result waits, and throws if the call failed.
  virtual absl::AnyInvocable<void()> nap_async(int rank, int64_t microseconds) = 0;
  // Whether the framework can say at all that a worker is gone.
  virtual bool can_notice() const = 0;
  // Whether worker `rank` is gone for good. Called on a thread of its own.
  virtual bool is_lost(int rank) = 0;
};

// The cases killed_peer and cut_link, in which worker 1 is lost. The figures are in_flight_failed_ms, until
// the last of several calls in flight has failed, and, if it can be noticed, noticed_ms. Throws if a call was
// answered, or it took over a minute and a half.
Measurement run_loss(LossObserver& observer, const Task& task);

}  // namespace gradwire::bench
