#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace gradwire::rpc {

// Decides when a store that does not answer counts as lost: a pure state machine. Its inputs are the results
// of calls to the store. The caller makes one call after another.
//
//   answering -> silent      A call ended without an answer.
//   silent -> lost           Two or more calls in a row had no answer, and together took `lost_after`.
//   any state -> lost        The store cannot be reached.
//   any state -> answering   A call was answered.
//
// A process that was paused (by a debugger or SIGSTOP) finds that its own call has expired although the store
// has answered. Its next call is answered. Therefore one call alone is not enough, and a call counts for at
// most kLongestCall.
//
// Not thread-safe.
class StoreSilence {
 public:
  static constexpr absl::Duration kLongestCall = absl::Seconds(10);

  explicit StoreSilence(absl::Duration lost_after) : lost_after_(lost_after) {}

  enum class State { kAnswering, kSilent, kLost };

  void answered() {
    state_ = State::kAnswering;
    calls_ = 0;
    duration_ = absl::ZeroDuration();
  }
  // A call ended without an answer, `took` after it began.
  void unanswered(absl::Duration took) {
    ++calls_;
    duration_ += std::min(took, kLongestCall);
    if (state_ == State::kAnswering) state_ = State::kSilent;
    if (calls_ >= 2 && duration_ >= lost_after_) state_ = State::kLost;
  }
  // The store's host refuses connections, or no connection can be made.
  void unreachable() {
    answered();
    state_ = State::kLost;
  }

  State state() const { return state_; }
  bool lost() const { return state_ == State::kLost; }
  // Total duration of the calls without an answer. Zero if the store answers or is unreachable.
  absl::Duration duration() const { return duration_; }

 private:
  const absl::Duration lost_after_;
  State state_ = State::kAnswering;
  int calls_ = 0;
  absl::Duration duration_ = absl::ZeroDuration();
};

}  // namespace gradwire::rpc
