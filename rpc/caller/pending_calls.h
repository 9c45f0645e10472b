#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/rpc/caller/repeatable_request.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/link/flow_window.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Link;
struct Peer;
class RRefHandle;

// The answer to a call: its envelope and buffers.
struct Answer {
  EnvelopePtr envelope;
  std::vector<transport::Buffer> buffers;

  proto::Response& response() { return *(*envelope)->mutable_response(); }
};

// A call that waits for its answer.
struct PendingCall {
  std::shared_ptr<Peer> peer;
  uint64_t incarnation = 0;  // The peer's.
  std::string callee;
  // Its place in the peer's window; empty for services, which need none.
  FlowCredit credit;
  absl::Time started;
  // When it leaves: later than it started if it had to wait for its place.
  absl::Time leaves;
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  absl::Duration timeout;                        // From `started` to `deadline`, for people.
  // The link that it left on.
  std::shared_ptr<Link> link;
  // Between add() and sent(): whoever gives up leaves the reason for the sender, who alone can tell the
  // callee.
  bool sending = true;
  absl::Status given_up;
  // The transport may read memory of the caller until this ticket is captured.
  bool borrows = false;
  uint64_t ticket = 0;
  // References that the request carried, kept until the answer is here.
  std::vector<std::shared_ptr<RRefHandle>> references;
  // The request of a call that is made again when its connection breaks, else nullptr. Between two attempts
  // such a call has no link.
  std::shared_ptr<const RepeatableRequest> repeatable;
  int attempts = 0;  // Attempts of a repeatable call that have begun.
  // Exactly one is set: `done` gets the decoded answer, `answered` gets it as it came.
  absl::AnyInvocable<void(absl::StatusOr<IncomingPayload>)> done;
  absl::AnyInvocable<void(absl::StatusOr<Answer>)> answered;
};

// The timeout_us of a request that leaves at `now`: never 0 unless there is no deadline.
inline int64_t timeout_us(absl::Time deadline, absl::Time now) {
  if (deadline == absl::InfiniteFuture()) return 0;
  return std::max<int64_t>(1, absl::ToInt64Microseconds(deadline - now));
}

// The calls of one agent that wait for an answer. Whoever takes a call out completes it, so each completes
// once, and then says finished(): until then the call counts as unfinished, though it is no longer in the
// table. Thread-safe; runs nothing.
class PendingCalls {
 public:
  using Taken = std::unique_ptr<PendingCall>;

  uint64_t next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // When expire() must be called for this call; InfiniteFuture if an earlier call's time does.
  absl::Time add(uint64_t id, Taken call);
  // The call has left with this ticket. Returns it when somebody gave up meanwhile (PendingCall::given_up).
  Taken sent(uint64_t id, uint64_t ticket);
  // Takes a call to give it up; nullptr when it is gone, or left to its sender.
  Taken give_up(uint64_t id, const absl::Status& reason);
  // nullptr when the call is gone: a late or second answer.
  Taken take(uint64_t id);
  // Only if the call went to this worker: answers are accepted from nobody else.
  Taken take_from(uint64_t id, uint64_t incarnation);
  // The calls that were under way on a link, but for repeatable ones: these stay, without a link, and are
  // named.
  struct Broken {
    std::vector<Taken> calls;
    std::vector<uint64_t> repeatable;
  };
  Broken take_link(const Link& link);
  // Those that went to this worker.
  std::vector<Taken> take_worker(uint64_t incarnation);
  std::vector<Taken> take_all();
  struct Expired {
    std::vector<std::pair<uint64_t, Taken>> calls;
    // When to come again.
    absl::Time next = absl::InfiniteFuture();
  };
  // The calls whose deadline has come. `alarm`: what add() or the last call of this said; nothing happens for
  // one that another alarm has replaced.
  Expired take_expired(absl::Time alarm, absl::Time now);
  // ---- Repeatable calls (caller_repeats.cc).

  struct Attempt {
    std::shared_ptr<Peer> peer;
    std::shared_ptr<const RepeatableRequest> request;
    std::string callee;
    absl::Time deadline;
    int number = 0;  // 1: the first.
  };
  // The attempt that a call is at, after counting it if it `begins`. Nothing when the call is gone.
  std::optional<Attempt> attempt(uint64_t id, bool begins);
  // The attempt goes on this link; sent() follows. False when the call is gone.
  bool attach(uint64_t id, const std::shared_ptr<Link>& link);
  // The attempt on this link has failed. False when the call is gone, or not there any more.
  bool detach(uint64_t id, const Link& link);

  bool contains(uint64_t id) const;
  std::size_t size() const;
  // A call that waits for its answer, services excluded.
  struct Waiting {
    std::string callee;
    uint64_t to = 0;  // The incarnation.
    absl::Time since;
  };
  std::vector<Waiting> waiting() const;
  // A call that was not added will be completed.
  void refused() { unfinished_.fetch_add(1); }
  // A call that was taken, or refused, has been completed.
  void finished() { unfinished_.fetch_sub(1); }
  // In the table or not yet finished.
  std::size_t unfinished() const { return unfinished_.load(); }

 private:
  using Calls = absl::flat_hash_map<uint64_t, Taken>;
  Taken take_locked(Calls::iterator call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <class Matches>
  std::vector<Taken> take_where(Matches matches);

  std::atomic<uint64_t> next_id_{1};
  std::atomic<std::size_t> unfinished_{0};
  mutable Mutex mutex_;
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  // No call's deadline comes before it. One alarm serves all calls: most end long before their time.
  absl::Time alarm_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace gradwire::rpc
