#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/security/limits.h"

namespace gradwire::rpc {

// Returns InvalidArgument if a limit is 0, or if the flow window of a worker with the same options is larger
// than what it may use.
absl::Status check_caller_limits(const CallerLimits& limits, const FlowOptions& flow);

// Counts the calls that each caller has in flight at one worker, and their bytes, and decides whether it may
// have one more. A caller without calls has no entry. A pure state machine. Not thread-safe.
class CallerBudget {
 public:
  struct Bounds {
    uint64_t calls = 0;
    uint64_t bytes = 0;
  };
  enum class Verdict { kEntered, kTooManyCalls, kTooManyBytes };

  explicit CallerBudget(const Bounds& bounds) : bounds_(bounds) {}

  // A call of `bytes` has arrived from this incarnation. If it does not fit, nothing is counted. A call of
  // any size fits when the caller has no other one.
  Verdict enter(uint64_t caller, uint64_t bytes);
  // A call that has entered has ended.
  void leave(uint64_t caller, uint64_t bytes);

  // Number of callers with calls in flight.
  std::size_t callers() const { return used_.size(); }
  // The calls and bytes of a caller.
  Bounds used(uint64_t caller) const;

 private:
  const Bounds bounds_;
  HashMap<uint64_t, Bounds> used_;
};

// Decides what a callee does with the requests of callers that do not read its answers.
//
// While more bytes than the limit wait for a caller, over all of its connections, each of its requests is
// answered with a short error. A caller that keeps to the protocol reads such an error behind the answers
// before it, so it cannot get many: the number of its unanswered requests is limited. A caller that gets
// more does not read. Then the connection of its request must end. The errors take at most about as many
// bytes as the limit.
//
// How many bytes wait says nothing about the caller: handlers that run when it reaches the limit send their
// answers, too.
//
// A pure state machine. Not thread-safe.
class UnreadAnswers {
 public:
  enum class Verdict { kServe, kRefuse, kClose };

  // The size of an error, rounded up.
  static constexpr uint64_t kErrorBytes = 1024;

  // `most_refused`: maximum number of requests that a caller may send while it is above the limit. It is less
  // if their errors would take more than `max_bytes`.
  UnreadAnswers(uint64_t max_bytes, uint64_t most_refused)
      : max_bytes_(max_bytes), most_refused_(std::min(most_refused, max_bytes / kErrorBytes)) {}

  // A request of this caller has arrived while `unread` bytes wait for it.
  Verdict on_request(uint64_t caller, uint64_t unread);
  // Nothing more waits for the caller, or not more than the limit.
  void forget(uint64_t caller) { refused_.erase(caller); }

  bool fits(uint64_t unread) const { return unread <= max_bytes_; }
  // Number of callers above the limit.
  std::size_t callers() const { return refused_.size(); }

 private:
  const uint64_t max_bytes_;
  const uint64_t most_refused_;
  // The number of requests since the caller is above the limit.
  HashMap<uint64_t, uint64_t> refused_;
};

}  // namespace gradwire::rpc
