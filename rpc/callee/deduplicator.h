#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "gradwire/rpc/membership/gone_workers.h"
#include "gradwire/rpc/options.h"

namespace gradwire::rpc {

// Tells a callee which requests are repetitions, so that each runs once (proto/rpc.proto, "Repeated calls").
//
// A request is unknown -> running -> answered -> unknown again. It goes from running to unknown where its
// answer is not kept; from answered to unknown when its caller has the answer (the watermark has passed it),
// when there is no room for it any more, or when its time is over. A request below its caller's watermark is
// never unknown: it is stale.
//
// Decides only: no threads, no clock, no messages. Answers are anything; those that it lets go of are kept in
// take_dropped(), for whoever holds a lock around this. Not thread-safe.
class Deduplicator {
 public:
  // Where a request came in, and where its answer goes.
  struct Route {
    uint64_t link = 0;
    uint64_t call = 0;
    uint32_t attempt = 0;  // One that overtook an earlier one keeps the answer.
    bool operator==(const Route&) const = default;
  };
  using Answer = std::shared_ptr<const void>;

  enum class Verdict {
    kRun,       // It is new.
    kAttached,  // It runs; its answer goes to the new route.
    kAnswered,  // It was answered; the answer goes to the new route again.
    kStale,     // Its caller has the answer, does not want it, or a later attempt of it has come before.
  };
  struct Arrival {
    Verdict verdict = Verdict::kRun;
    Route before;   // kAttached: where the answer would have gone.
    Answer answer;  // kAnswered.
    // Requests that run, and that their caller does not want any more. Each is named once.
    std::vector<Route> unwanted;
  };

  explicit Deduplicator(const RetryOptions& options) : options_(options) {}

  // A request of this caller (an incarnation) and number, not 0, which wants no answers below `watermark`.
  Arrival arrive(uint64_t caller, uint64_t request, uint64_t watermark, Route route, absl::Time now);

  // A running request has ended with this answer of so many bytes; nullptr: it is not to be kept. Returns the
  // route of the answer; nothing for a request that is not running.
  std::optional<Route> end(uint64_t caller, uint64_t request, Answer answer, uint64_t bytes, absl::Time now);

  // The caller is dead or has left: what comes of it later is stale. Returns the routes of its requests that
  // run and were wanted.
  std::vector<Route> forget(uint64_t caller);
  // Drops all answers.
  void clear();
  // Drops the answers whose time is over. Returns when to come again.
  absl::Time expire(absl::Time now);

  std::vector<Answer> take_dropped() { return std::exchange(dropped_, {}); }

  std::size_t running() const;
  std::size_t answers() const { return answers_; }
  uint64_t bytes() const;
  // Callers that are known, and numbers of answers that are remembered, dropped ones included: at most twice
  // as many as there are answers and 16 for each caller.
  std::size_t callers() const { return callers_.size(); }
  std::size_t remembered() const;

 private:
  struct Entry {
    Route route;
    bool wanted = true;
    // Once it is answered.
    bool answered = false;
    Answer answer;
    uint64_t bytes = 0;
    absl::Time kept_until;
  };
  struct Caller {
    uint64_t watermark = 0;
    std::map<uint64_t, Entry> entries;
    // Answered requests in the order of their answers; some may be gone.
    std::deque<uint64_t> order;
    std::size_t answers = 0;
    uint64_t bytes = 0;
    bool gone = false;
  };
  using Entries = std::map<uint64_t, Entry>;

  void drop(Caller& caller, Entries::iterator entry);
  // Drops answers from the oldest on while `excess` says so.
  template <class Excess>
  void drop_oldest(Caller& caller, Excess excess);
  void drop_expired(Caller& caller, absl::Time now);
  void raise_watermark(Caller& caller, uint64_t watermark, std::vector<Route>& unwanted);
  void drop_answers(Caller& caller);

  const RetryOptions options_;
  absl::flat_hash_map<uint64_t, Caller> callers_;
  GoneWorkers gone_;
  std::size_t answers_ = 0;
  std::vector<Answer> dropped_;
};

}  // namespace gradwire::rpc
