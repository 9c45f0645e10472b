#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/rpc/core/repeatable_request.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/flight/call_parent.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/link/flow_window.h"
#include "gradwire/rpc/profile/call_profiler.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Link;
struct Peer;
class RRefHandle;

// The request ids of the repeatable calls of one agent, and which of them wait for an answer
// (proto/rpc.proto, "Repeated calls"). Thread-safe.
class RequestIds {
 public:
  // Returns an id for a request to this worker (an incarnation).
  uint64_t begin(uint64_t to) {
    MutexLock lock(mutex_);
    std::set<uint64_t>& ids = open_[to];
    // A set without an id must not stay.
    try {
      ids.insert(next_);
    } catch (...) {
      if (ids.empty()) open_.erase(to);
      throw;
    }
    return next_++;
  }
  // Call when the request has its answer, or the answer is not wanted any more.
  void end(uint64_t to, uint64_t id) {
    MutexLock lock(mutex_);
    auto found = open_.find(to);
    if (found == open_.end()) return;
    found->second.erase(id);
    if (found->second.empty()) open_.erase(found);
  }
  // No request to this worker with an id below the result waits for an answer.
  uint64_t answered_below(uint64_t to) const {
    MutexLock lock(mutex_);
    auto found = open_.find(to);
    return found == open_.end() ? next_ : *found->second.begin();
  }
  bool empty() const {
    MutexLock lock(mutex_);
    return open_.empty();
  }
  // Number of requests that wait for an answer.
  std::size_t size() const {
    std::size_t size = 0;
    MutexLock lock(mutex_);
    for (const auto& [to, ids] : open_) size += ids.size();
    return size;
  }

 private:
  mutable Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  HashMap<uint64_t, std::set<uint64_t>> open_ ABSL_GUARDED_BY(mutex_);
};

// The calls of one agent that wait for room in a flow window, for reports. A call is added only if the window
// to its callee is full. Thread-safe.
class CreditWaits {
 public:
  // A call is in the table while the object lives.
  class Scope {
   public:
    Scope(CreditWaits& waits, CallReport call) : waits_(waits), number_(call.identity.number) {
      MutexLock lock(waits_.mutex_);
      waits_.calls_.insert_or_assign(number_, std::move(call));
    }
    ~Scope() {
      MutexLock lock(waits_.mutex_);
      waits_.calls_.erase(number_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CreditWaits& waits_;
    const uint64_t number_;
  };

  void append_to(std::vector<CallReport>& reports) const {
    MutexLock lock(mutex_);
    for (const auto& [number, call] : calls_) reports.push_back(call);
  }

 private:
  mutable Mutex mutex_;
  HashMap<uint64_t, CallReport> calls_ ABSL_GUARDED_BY(mutex_);
};

// The answer to a call: its envelope and buffers.
struct Answer {
  EnvelopePtr envelope;
  std::vector<transport::Buffer> buffers;

  proto::Response& response() { return *(*envelope)->mutable_response(); }
};

// A call that waits for its answer.
struct PendingCall {
  std::shared_ptr<Peer> peer;
  uint64_t incarnation = 0;  // The incarnation of the peer.
  std::string callee;
  // As CallReport::stream_of; nullptr for most calls.
  std::shared_ptr<const std::string> stream_of;
  CallParent parent;
  // The number of its record (CallRecorder); without one, its default.
  uint64_t record = ~uint64_t{0};
  // The call's credit in the peer's flow window; empty for services, which need none.
  FlowCredit credit;
  absl::Time started;
  // Time at which it is sent: later than `started` if it had to wait for its credit.
  absl::Time sent_at;
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  absl::Duration timeout;                        // From `started` to `deadline`, for messages.
  // The link on which it was sent.
  std::shared_ptr<Link> link;
  // Its tensors are still being copied from a device: it has no link, and nothing has been sent. attach()
  // ends this.
  bool copying = false;
  // True between add() and sent(). Only the sending thread can send a Cancel then, so another thread that
  // cancels the call stores the reason in `given_up`, and the sending thread handles it.
  bool sending = true;
  absl::Status given_up;
  // Whether the transport may read memory of the caller until `ticket` is captured.
  bool borrows = false;
  uint64_t ticket = 0;
  // References in the request, kept until the answer arrives.
  std::vector<std::shared_ptr<RRefHandle>> references;
  // nullptr if no profiler sees the call.
  std::unique_ptr<ProfiledCall> profile;
  // The request of a repeatable call, else nullptr. Between two attempts such a call has no link.
  std::shared_ptr<const RepeatableRequest> repeatable;
  int attempts = 0;  // Number of attempts of a repeatable call that have begun.
  // Exactly one of them is set: `done` receives the decoded answer, `answered` the undecoded one.
  absl::AnyInvocable<void(absl::StatusOr<IncomingPayload>&&)> done;
  absl::AnyInvocable<void(absl::StatusOr<Answer>)> answered;
};

// The timeout_us of a request that is sent at `now`. 0 only if the deadline is infinite.
inline int64_t timeout_us(absl::Time deadline, absl::Time now) {
  if (deadline == absl::InfiniteFuture()) return 0;
  return std::max<int64_t>(1, absl::ToInt64Microseconds(deadline - now));
}

// The calls of one agent that are waiting for an answer. The thread that takes a call out of the table
// completes it, so each call completes once. After that it calls finished(): until then the call counts as
// unfinished, although it is not in the table. A method that throws has changed nothing. Thread-safe; makes
// no callbacks.
class PendingCalls {
 public:
  using Taken = std::unique_ptr<PendingCall>;

  // `self`: the incarnation of the agent, for reports.
  explicit PendingCalls(uint64_t self = 0) : self_(self) {}

  uint64_t next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // Adds a call. Returns the time for which the caller must schedule an alarm; InfiniteFuture if an earlier
  // alarm serves this call, too.
  absl::Time add(uint64_t id, Taken call);
  // Call when the request has been sent with this ticket. Returns the call if another thread cancelled it
  // meanwhile (PendingCall::given_up), else nullptr.
  Taken sent(uint64_t id, uint64_t ticket);
  // Takes a call in order to cancel it. Returns nullptr if the call is not in the table, or is left to its
  // sending thread.
  Taken give_up(uint64_t id, const absl::Status& reason);
  // Takes a call. Returns nullptr if it is not in the table, which means a late or second answer.
  Taken take(uint64_t id);
  // As take(), but only if the call was sent to this worker: an answer from another worker is not accepted.
  Taken take_from(uint64_t id, uint64_t incarnation);
  // The calls that were waiting on a link. Repeatable calls stay in the table, without a link, and only their
  // ids are returned.
  struct Broken {
    std::vector<Taken> calls;
    std::vector<uint64_t> repeatable;
  };
  Broken take_link(const Link& link);
  // Takes all calls to this worker.
  std::vector<Taken> take_worker(uint64_t incarnation);
  std::vector<Taken> take_all();
  struct Expired {
    using Calls = std::vector<std::pair<uint64_t, Taken>>;
    Calls calls;
    // The time of the next alarm.
    absl::Time next = absl::InfiniteFuture();
  };
  // Takes the calls whose deadline has come. `alarm`: the time that add() or the last take_expired()
  // returned. If another alarm has replaced it, nothing is taken.
  Expired take_expired(absl::Time alarm, absl::Time now);
  // Call if this alarm could not be scheduled. Until the next call of add() an earlier alarm serves the
  // calls.
  void lose_alarm(absl::Time alarm);
  // ---- Repeatable calls.

  struct Attempt {
    std::shared_ptr<Peer> peer;
    std::shared_ptr<const RepeatableRequest> request;
    std::string callee;
    absl::Time deadline;
    int number = 0;  // The first attempt has number 1.
  };
  // Returns the present attempt of a call. `begins`: starts the next attempt first. Nullopt if the call is
  // not in the table.
  std::optional<Attempt> attempt(uint64_t id, bool begins);
  // Call before the attempt is sent on this link; sent() must follow. Returns false if the call is not in the
  // table.
  bool attach(uint64_t id, const std::shared_ptr<Link>& link);
  // Call when sending on this link has failed. Returns false if the call is not in the table, or has left
  // this link.
  bool detach(uint64_t id, const Link& link);

  // The callee of a call to this worker; "" if the call is not in the table.
  std::string callee(uint64_t id, uint64_t incarnation) const;
  bool contains(uint64_t id) const;
  std::size_t size() const;
  // The calls that wait for a credit are not in the table yet.
  CreditWaits& credit_waits() { return credit_waits_; }
  // The calls that have not ended, in no order: those that wait for a credit, and those in the table. The
  // framework's own messages are included only with `services`.
  std::vector<CallReport> waiting(bool services = false) const;
  // Call before completing a call that was never added.
  void refused() { unfinished_.fetch_add(1); }
  // Call after completing a call that was taken or refused.
  void finished() { unfinished_.fetch_sub(1); }
  // Number of calls that are in the table or not yet finished.
  std::size_t unfinished() const { return unfinished_.load(); }

 private:
  using Calls = HashMap<uint64_t, Taken>;
  Taken take_locked(Calls::iterator call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <class Matches>
  std::vector<Taken> take_where(Matches matches);

  const uint64_t self_;

  std::atomic<uint64_t> next_id_{1};
  std::atomic<std::size_t> unfinished_{0};
  CreditWaits credit_waits_;
  mutable Mutex mutex_;
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  // Time of the next alarm, which is not later than any deadline. One alarm serves all calls, because most
  // calls end long before their deadlines.
  absl::Time alarm_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace gradwire::rpc
