#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace gradwire::rpc {

// Decides when a store that does not answer is lost: a pure state machine, the ends of calls to the store in.
// The one who calls makes one call after another.
//
//   answering -> silent      a call ended without an answer
//   silent -> lost           two calls or more in a row had no answer, and together took `lost_after`
//   answering, silent -> lost   the store cannot be reached
//   silent, lost -> answering   a call was answered
//
// A process that stood still (a debugger, SIGSTOP) finds its own call out of time though the store has
// answered. Its next call is answered, which is why one call alone does not count, and a call counts for
// kLongestCall at most.
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
  // The store's host says that nobody listens, or no connection can be made.
  void unreachable() {
    answered();
    state_ = State::kLost;
  }

  State state() const { return state_; }
  bool lost() const { return state_ == State::kLost; }
  // How long the calls without an answer took together; zero for a store that answers or is unreachable.
  absl::Duration duration() const { return duration_; }

 private:
  const absl::Duration lost_after_;
  State state_ = State::kAnswering;
  int calls_ = 0;
  absl::Duration duration_ = absl::ZeroDuration();
};

}  // namespace gradwire::rpc
