#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/membership/gone_workers.h"

namespace gradwire::rpc {

// Finds out which requests are repetitions, so that the callee runs each request once (proto/rpc.proto,
// "Repeated calls").
//
// States of a request: unknown -> running -> answered -> unknown. A running request becomes unknown at its
// end if its answer is not kept. An answered request becomes unknown when its caller has the answer (the
// watermark has passed it), when there is no more room for the answer, or when the answer expires. A request
// below its caller's watermark is stale, never unknown.
//
// A pure state machine: no threads, no clock, no messages. Answers are opaque. Dropped answers are collected
// in take_dropped(), so that a caller that holds a lock can destroy them without it. Not thread-safe.
class Deduplicator {
 public:
  // The connection and call on which a request arrived. Its answer is sent there.
  struct Route {
    uint64_t link = 0;
    uint64_t call = 0;
    // If attempts overtake one another, the answer goes to the highest one.
    uint32_t attempt = 0;
    bool operator==(const Route&) const = default;
  };
  using Answer = std::shared_ptr<const void>;

  enum class Verdict {
    kRun,       // It is new: run it.
    kAttached,  // It is running; its answer goes to the new route.
    kAnswered,  // It has been answered: send the answer again, on the new route.
    kStale,     // Drop it: its caller does not need the answer, or a later attempt has arrived before.
  };
  struct Decision {
    Verdict verdict = Verdict::kRun;
    Route before;   // For kAttached: the previous route.
    Answer answer;  // For kAnswered.
    // Running requests whose answers the caller does not want any more. Each is returned once.
    std::vector<Route> unwanted;
  };

  explicit Deduplicator(const RetryOptions& options) : options_(options) {}

  // A request has arrived. `caller` is an incarnation. `request` must not be 0. The caller wants no answers
  // of requests below `watermark`.
  Decision arrive(uint64_t caller, uint64_t request, uint64_t watermark, Route route, absl::Time now);

  // A running request has ended with an answer of `bytes` bytes; nullptr if the answer must not be kept.
  // Returns the route of the answer; nullopt if the request is not running.
  std::optional<Route> end(uint64_t caller, uint64_t request, Answer answer, uint64_t bytes, absl::Time now);

  // The caller is dead or has left. Its later requests are stale. Returns the routes of its running requests
  // whose answers were still wanted.
  std::vector<Route> forget(uint64_t caller);
  // Drops all answers.
  void clear();
  // Drops expired answers. Returns the time of the next call.
  absl::Time expire(absl::Time now);

  std::vector<Answer> take_dropped() { return std::exchange(dropped_, {}); }

  std::size_t running() const;
  std::size_t answers() const { return answers_; }
  uint64_t bytes() const;
  // Number of known callers.
  std::size_t callers() const { return callers_.size(); }
  // Number of remembered request ids of answers, including dropped answers. At most 2 * answers() + 16 per
  // caller.
  std::size_t remembered() const;

 private:
  struct Entry {
    Route route;
    bool wanted = true;
    // The members below are set when the request is answered.
    bool answered = false;
    Answer answer;
    uint64_t bytes = 0;
    absl::Time kept_until;
  };
  struct Caller {
    uint64_t watermark = 0;
    std::map<uint64_t, Entry> entries;
    // Answered requests in the order of their answers. Some of them may have been dropped.
    std::deque<uint64_t> order;
    std::size_t answers = 0;
    uint64_t bytes = 0;
    bool gone = false;
  };
  using Entries = std::map<uint64_t, Entry>;

  void drop(Caller& caller, Entries::iterator entry);
  // Drops the oldest answer while `excess` returns true.
  template <class Excess>
  void drop_oldest(Caller& caller, Excess excess);
  void drop_expired(Caller& caller, absl::Time now);
  void raise_watermark(Caller& caller, uint64_t watermark, std::vector<Route>& unwanted);
  void drop_answers(Caller& caller);

  const RetryOptions options_;
  HashMap<uint64_t, Caller> callers_;
  GoneWorkers gone_;
  std::size_t answers_ = 0;
  std::vector<Answer> dropped_;
};

}  // namespace gradwire::rpc
