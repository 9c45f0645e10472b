#include "gradwire/rpc/callee/served_calls.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/callee/served_call.h"
#include "gradwire/rpc/core/repeatable_request.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/transfers/transfer_watch.h"

namespace gradwire::rpc {

UnreadAnswers::Verdict SlowReaders::on_request(uint64_t caller, LinkSender& link) {
  if (none_waits(link)) return UnreadAnswers::Verdict::kServe;
  Kept kept;
  MutexLock lock(mutex_);
  return answers_.on_request(caller, unread_locked(caller, link, kept));
}

bool SlowReaders::may_run(uint64_t caller, LinkSender& link) {
  if (none_waits(link)) return true;
  Kept kept;
  MutexLock lock(mutex_);
  const uint64_t unread = unread_locked(caller, link, kept);
  if (!answers_.fits(unread)) return false;
  answers_.forget(caller);
  return true;
}

// 1. Enter this link, if answers wait on it. A link that has ended must not get an entry: forget() has come
//    before.
// 2. Ask all links of the caller. The peer may have read from the others without a request on them.
uint64_t SlowReaders::unread_locked(uint64_t caller, LinkSender& link, Kept& kept) {
  if (link.unread_bytes() > 0 && !link.closed())
    links_.try_emplace(link.number(), Entry{caller, link.weak_from_this()});
  uint64_t unread = 0;
  absl::erase_if(links_, [&](const auto& entry) {
    if (entry.second.caller != caller) return false;
    std::shared_ptr<LinkSender> other = entry.second.link.lock();
    const uint64_t waiting = other == nullptr ? 0 : other->unread_bytes();
    unread += waiting;
    kept.push_back(std::move(other));
    return waiting == 0;
  });
  size_.store(links_.size(), std::memory_order_relaxed);
  return unread;
}

void SlowReaders::forget(uint64_t link) {
  MutexLock lock(mutex_);
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  const uint64_t caller = found->second.caller;
  links_.erase(found);
  size_.store(links_.size(), std::memory_order_relaxed);
  for (const auto& [number, entry] : links_) {
    if (entry.caller == caller) return;
  }
  answers_.forget(caller);
}

std::size_t SlowReaders::links() const {
  Kept kept;
  MutexLock lock(mutex_);
  std::size_t links = 0;
  for (const auto& [number, entry] : links_) {
    kept.push_back(entry.link.lock());
    if (kept.back() != nullptr && kept.back()->unread_bytes() > 0) ++links;
  }
  return links;
}

namespace {

CallIdentity identity_of(const ServedCall& call) {
  return {call.incoming().from.incarnation, call.incoming().request().call_id()};
}

}  // namespace

// Locked pointers to calls are destroyed without the lock, because they may be the last ones.
void TurnWaits::add(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand) {
  std::vector<std::shared_ptr<ServedCall>> kept;
  MutexLock lock(mutex_);
  entries_.push_back({call, strand});
  if (entries_.size() < sweep_at_) return;
  std::erase_if(entries_, [&](const Entry& entry) {
    std::shared_ptr<ServedCall> waiting = entry.call.lock();
    const bool left = waiting == nullptr || waiting->turn_wait().over();
    kept.push_back(std::move(waiting));
    return left;
  });
  sweep_at_ = std::max<std::size_t>(8, 2 * entries_.size());
}

std::vector<TurnWaits::Wait> TurnWaits::waits() const {
  std::vector<Entry> entries;
  {
    MutexLock lock(mutex_);
    entries = entries_;
  }
  std::vector<Wait> waits;
  for (const Entry& entry : entries) {
    const std::shared_ptr<ServedCall> waiting = entry.call.lock();
    const std::shared_ptr<Strand> strand = entry.strand.lock();
    if (waiting == nullptr || strand == nullptr || waiting->turn_wait().over()) continue;
    const auto holder = std::static_pointer_cast<const ServedCall>(strand->holder());
    if (holder == nullptr) continue;
    waits.push_back({identity_of(*waiting), {identity_of(*holder), holder->callee()}});
  }
  return waits;
}

CallIdentity root_of(const proto::Request& request, uint64_t caller) {
  if (!request.has_root()) return {caller, request.call_id()};
  return {request.root().caller(), request.root().call_id()};
}

absl::Time deadline_of(const proto::Request& request, absl::Time arrived) {
  return request.timeout_us() <= 0 ? absl::InfiniteFuture()
                                   : arrived + absl::Microseconds(request.timeout_us());
}

uint64_t bytes_of(const EnvelopePtr& envelope, const std::vector<transport::Buffer>& buffers) {
  uint64_t bytes = envelope->wire_bytes();
  for (const transport::Buffer& buffer : buffers) bytes += buffer.size();
  return bytes;
}

// A call that is not repeatable is in the table from begin() to end(). A repeatable call leaves the table
// earlier, in keep_answer(). The three tables for repeatable calls change in the same critical section:
// calls_ (by the link on which the call arrived last), the Deduplicator (by caller and request id), and
// orphans_ (calls whose link has closed).
// A cancellation runs callbacks of handlers. So each function collects the sources under the lock, and fires
// them after it.
struct ServedCalls::Repeatable {
  // The link on which its answer is sent.
  std::shared_ptr<Link> link;
  uint64_t caller = 0;  // Its incarnation.
};

namespace {

// Minimum time between two scans of the table for calls whose deadlines have passed. So the scans cost little
// however many deadlines pass.
constexpr absl::Duration kExpiryInterval = absl::Milliseconds(10);

// A complete answer, so that it can be sent again. Its header is the serialised envelope.
using KeptAnswer = transport::Message;

}  // namespace

ServedCalls::ServedCalls(AgentRuntime& runtime)
    : runtime_(runtime),
      repeats_(runtime.options.retry),
      calls_of_callers_(
          {runtime.options.caller_limits.max_calls, runtime.options.caller_limits.max_call_bytes}),
      services_of_callers_(
          {runtime.options.caller_limits.max_messages, runtime.options.caller_limits.max_messages_bytes}),
      slow_readers_(runtime.options.caller_limits) {}

absl::Status ServedCalls::check_reader(const Worker& from, Link& link) {
  const UnreadAnswers::Verdict verdict = slow_readers_.on_request(from.incarnation, link);
  if (verdict == UnreadAnswers::Verdict::kServe) return absl::OkStatus();
  absl::Status refused = refuse(from, unread_limit());
  // The peer does not read, so nothing is sent before the connection is closed.
  if (verdict == UnreadAnswers::Verdict::kClose) link.part(goodbye(refused), refused, absl::ZeroDuration());
  return refused;
}

absl::Status ServedCalls::check_reader_again(const Worker& from, Link& link) {
  return slow_readers_.may_run(from.incarnation, link) ? absl::OkStatus() : refuse(from, unread_limit());
}

absl::Status ServedCalls::refuse(const Worker& from, const CallerLimit& limit) {
  return runtime_.refusals.refuse(from, runtime_.self, limit, Clock::system().now());
}

std::optional<CallerLimit> ServedCalls::enter_locked(const IncomingCall& call) {
  if (call.from.incarnation == runtime_.self.incarnation) return std::nullopt;
  const CallerLimits& limits = runtime_.options.caller_limits;
  switch (calls_of_callers_.enter(call.from.incarnation, call.bytes)) {
    case CallerBudget::Verdict::kEntered:
      break;
    case CallerBudget::Verdict::kTooManyCalls:
      return CallerLimit{"calls in flight", "max_calls", limits.max_calls};
    case CallerBudget::Verdict::kTooManyBytes:
      return CallerLimit{"bytes of calls in flight", "max_call_bytes", limits.max_call_bytes};
  }
  return std::nullopt;
}

ServedCalls::Begun ServedCalls::begin(const IncomingCall& call, CancellationSource source,
                                      const SharedCallState& state, absl::Status& refused) {
  if (call.is_repeatable()) return begin_repeatable(call, std::move(source), state, refused);
  std::optional<CallerLimit> exceeded;
  absl::Time alarm = absl::InfiniteFuture();
  {
    MutexLock lock(mutex_);
    // The caller gets an answer as long as the links are open.
    refused = stopped_;
    if (!refused.ok()) return Begun::kRefused;
    // A request whose call id is in use on this link is a duplicate: ignore it.
    const CallKey key{call.link->number(), call.request().call_id()};
    if (calls_.contains(key)) return Begun::kDone;
    refused = check_leaving_locked(call);
    if (!refused.ok()) return Begun::kRefused;
    const auto entry = calls_
                           .try_emplace(key, Running{std::move(source), nullptr, &call.request(), &state,
                                                     call.from.incarnation, call.arrived, call.deadline})
                           .first;
    try {
      exceeded = enter_locked(call);
    } catch (...) {
      calls_.erase(entry);
      throw;
    }
    if (exceeded) {
      calls_.erase(entry);
    } else {
      alarm = next_alarm_locked(call.deadline);
    }
  }
  begin_alarm(alarm);
  if (!exceeded) return Begun::kRun;
  refused = refuse(call.from, *exceeded);
  return Begun::kRefused;
}

// Handles the arrival of a repeatable request:
//   1. The Deduplicator finds out whether it is new, running, answered or stale.
//   2. A new request enters the table, if its caller has room for it. A running one moves to the key of the
//      link on which it has arrived now, and its answer will be sent there.
//   3. Without the lock: cancel calls whose answers the caller does not want any more, and send a kept answer
//      again.
ServedCalls::Begun ServedCalls::begin_repeatable(const IncomingCall& call, CancellationSource source,
                                                 const SharedCallState& state, absl::Status& refused) {
  const proto::Request& request = call.request();
  const Worker& from = call.from;
  const std::shared_ptr<Link>& link = call.link;
  const CallKey key{link->number(), request.call_id()};
  Deduplicator::Decision decision;
  std::vector<CancellationSource> unwanted;
  std::vector<Deduplicator::Answer> dropped;
  std::optional<CallerLimit> exceeded;
  absl::Time alarm = absl::InfiniteFuture();
  {
    MutexLock lock(mutex_);
    refused = stopped_;
    if (!refused.ok()) return Begun::kRefused;
    // The same message has arrived twice on this link.
    if (calls_.contains(key)) return Begun::kDone;
    decision = repeats_.arrive(from.incarnation, request.request_id(), request.answered_below(),
                               {key.first, key.second, request.attempt()}, call.arrived);
    dropped = repeats_.take_dropped();
    for (const Deduplicator::Route& route : decision.unwanted) {
      auto found = calls_.find({route.link, route.call});
      if (found != calls_.end()) unwanted.push_back(found->second.source);
    }
    if (decision.verdict == Deduplicator::Verdict::kRun) {
      refused = check_leaving_locked(call);
      if (refused.ok()) exceeded = enter_locked(call);
    }
    if (exceeded || !refused.ok()) {
      // The request is unknown again, so the caller may repeat it.
      repeats_.end(from.incarnation, request.request_id(), nullptr, 0, call.arrived);
    } else if (decision.verdict == Deduplicator::Verdict::kRun) {
      try {
        auto repeatable = std::make_shared<Repeatable>(Repeatable{link, from.incarnation});
        calls_.try_emplace(key, Running{std::move(source), std::move(repeatable), &request, &state,
                                        from.incarnation, call.arrived, call.deadline});
      } catch (...) {
        calls_of_callers_.leave(from.incarnation, call.bytes);
        repeats_.end(from.incarnation, request.request_id(), nullptr, 0, call.arrived);
        throw;
      }
      alarm = next_alarm_locked(call.deadline);
    } else if (decision.verdict == Deduplicator::Verdict::kAttached) {
      auto found = calls_.find({decision.before.link, decision.before.call});
      if (found != calls_.end()) {
        Running running = std::move(found->second);
        calls_.erase(found);
        orphans_.erase({from.incarnation, decision.before.call});
        running.repeatable->link = link;
        calls_.try_emplace(key, std::move(running));
      }
    }
  }
  begin_alarm(alarm);
  for (const CancellationSource& other : unwanted) {
    other.cancel(absl::CancelledError(absl::StrCat("worker \"", from.name, "\" cancelled the call")),
                 runtime_.executor.get());
  }
  if (decision.verdict == Deduplicator::Verdict::kAnswered) {
    // The answer must have the call id of this repetition. So the envelope is a new one; the buffers are
    // shared.
    const auto& kept = *std::static_pointer_cast<const KeptAnswer>(decision.answer);
    EnvelopeBox envelope;
    (void)envelope->ParseFromString(kept.header);
    envelope->mutable_response()->set_call_id(request.call_id());
    // If this link breaks as well, the caller repeats its request again.
    (void)link->send(*envelope, kept.buffers, &request);
  }
  if (exceeded) refused = refuse(from, *exceeded);
  if (!refused.ok()) return Begun::kRefused;
  return decision.verdict == Deduplicator::Verdict::kRun ? Begun::kRun : Begun::kDone;
}

// Ends a repeatable call. Its entry leaves the table before the answer is sent, and in the same step the
// answer enters the Deduplicator. So a repetition that arrives from here on gets the kept answer. Until end()
// the call is counted in answers_in_progress_.
std::shared_ptr<Link> ServedCalls::keep_answer(const IncomingCall& call, const proto::Envelope& envelope,
                                               const std::vector<transport::Buffer>& buffers) noexcept {
  std::shared_ptr<KeptAnswer> kept;
  if (envelope.has_response()) {
    // An answer without memory is not kept. A repetition then runs the request again.
    run_contained("keeping an answer", [&] {
      auto copy = std::make_shared<KeptAnswer>();
      const proto::Payload& result = envelope.response().result();
      if (result.references_size() > 0 || result.has_graph()) {
        // References and graph nodes are counted, so they must not be sent twice. Keep an error instead.
        EnvelopeBox error;
        status_to_proto(with_worker(absl::UnavailableError(absl::StrCat(
                                        "\"", callee_of(call.request()),
                                        "\" has run, but its connection broke, and an answer with "
                                        "references or from an autograd context cannot be sent again")),
                                    runtime_.self.name),
                        *error->mutable_response()->mutable_status());
        copy->header = error->SerializeAsString();
      } else {
        copy->header = envelope.SerializeAsString();
        copy->buffers = buffers;
      }
      kept = std::move(copy);
    });
  }
  const uint64_t bytes = kept == nullptr ? 0 : kept->byte_size();
  std::shared_ptr<Link> link = call.link;
  std::shared_ptr<Repeatable> ended;
  std::vector<Deduplicator::Answer> dropped;
  const absl::Time now = Clock::system().now();
  {
    MutexLock lock(mutex_);
    ++answers_in_progress_;
    const auto end = [&](Deduplicator::Answer answer) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return repeats_.end(call.from.incarnation, call.request().request_id(), std::move(answer), bytes, now);
    };
    std::optional<Deduplicator::Route> route;
    try {
      // After stop() the answer is not kept: no repetition is accepted any more.
      route = end(stopped_.ok() ? std::move(kept) : nullptr);
    } catch (const std::bad_alloc&) {
      route = end(nullptr);
    }
    dropped = repeats_.take_dropped();
    auto found = route ? calls_.find({route->link, route->call}) : calls_.end();
    if (found != calls_.end()) {
      ended = std::move(found->second.repeatable);
      link = ended->link;
      orphans_.erase({ended->caller, found->first.second});
      calls_.erase(found);
    }
    if (repeats_.answers() > 0 && stopped_.ok() && !expiry_scheduled_) {
      // Without memory the next answer that is kept tries again.
      expiry_scheduled_ = run_contained("the end of kept answers", [&] {
        runtime_.timers->schedule(now + runtime_.options.retry.keep_answers, [this] { expire_answers(); });
      });
    }
  }
  return link;
}

absl::Status ServedCalls::begin_service(const Worker& from, uint64_t bytes, bool counted) {
  const CallerLimits& limits = runtime_.options.caller_limits;
  CallerBudget::Verdict verdict = CallerBudget::Verdict::kEntered;
  {
    MutexLock lock(mutex_);
    if (!stopped_.ok()) return absl::FailedPreconditionError(stopped_.message());
    if (counted) verdict = services_of_callers_.enter(from.incarnation, bytes);
    if (verdict == CallerBudget::Verdict::kEntered) ++answers_in_progress_;
  }
  switch (verdict) {
    case CallerBudget::Verdict::kEntered:
      break;
    case CallerBudget::Verdict::kTooManyCalls:
      return refuse(from, {"messages in flight", "max_messages", limits.max_messages});
    case CallerBudget::Verdict::kTooManyBytes:
      return refuse(from, {"bytes of messages in flight", "max_messages_bytes", limits.max_messages_bytes});
  }
  served_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

void ServedCalls::end_service(const Worker& from, uint64_t bytes, bool counted) {
  MutexLock lock(mutex_);
  --answers_in_progress_;
  if (counted) services_of_callers_.leave(from.incarnation, bytes);
}

void ServedCalls::expire_answers() {
  std::vector<Deduplicator::Answer> dropped;
  absl::Time next;
  {
    MutexLock lock(mutex_);
    next = repeats_.expire(Clock::system().now());
    dropped = repeats_.take_dropped();
    expiry_scheduled_ = next != absl::InfiniteFuture();
  }
  // schedule() ignores the infinite time. The next answer that is kept starts the timer again.
  runtime_.timers->schedule(next, [this] { expire_answers(); });
}

void ServedCalls::count(AgentTables& tables) const {
  const std::size_t unread = slow_readers_.links();
  MutexLock lock(mutex_);
  tables.served_calls = calls_.size() + answers_in_progress_;
  tables.held_requests = requests_.load(std::memory_order_relaxed);
  tables.kept_answers = repeats_.answers();
  tables.orphaned_calls = orphans_.size();
  tables.counted_callers = unread + calls_of_callers_.callers() + services_of_callers_.callers();
  tables.repeat_callers = repeats_.callers();
  tables.remembered_answers = repeats_.remembered();
}

// One alarm serves all calls, because most calls end long before their deadlines.
absl::Time ServedCalls::next_alarm_locked(absl::Time deadline) {
  const absl::Time alarm = std::max(deadline, next_scan_);
  if (alarm >= alarm_) return absl::InfiniteFuture();
  alarm_ = alarm;
  return alarm;
}

void ServedCalls::schedule_alarm(absl::Time alarm) {
  if (alarm == absl::InfiniteFuture()) return;
  absl::Cleanup lost = [&] {
    MutexLock lock(mutex_);
    // The next call begins another one.
    if (alarm_ == alarm) alarm_ = absl::InfiniteFuture();
  };
  // The timer queue is stopped before this object is destroyed.
  runtime_.timers->schedule(alarm, [this, alarm] { expire(alarm); });
  std::move(lost).Cancel();
}

// The call goes on without an alarm: the next call begins one, and the caller sends a Cancel.
void ServedCalls::begin_alarm(absl::Time alarm) noexcept {
  run_contained("the alarm for deadlines", [&] { schedule_alarm(alarm); });
}

// The caller sends a Cancel at the deadline as well, but may have no connection, or may not have noticed that
// its time is over.
void ServedCalls::expire(absl::Time alarm) {
  struct Expired {
    CancellationSource source;
    std::string callee;
    Running* running;
  };
  std::vector<Expired> expired;
  const absl::Time now = Clock::system().now();
  absl::Time next = absl::InfiniteFuture();
  {
    MutexLock lock(mutex_);
    // An earlier alarm has replaced this one. Without an alarm, this one comes again because it has thrown.
    if (alarm != alarm_ && alarm_ != absl::InfiniteFuture()) return;
    absl::Time earliest = absl::InfiniteFuture();
    for (auto& [key, running] : calls_) {
      if (running.deadline > now) {
        earliest = std::min(earliest, running.deadline);
      } else if (!running.expired) {
        expired.push_back({running.source, callee_of(*running.request), &running});
      }
    }
    // From here on nothing throws.
    for (const Expired& each : expired) each.running->expired = true;
    next_scan_ = now + kExpiryInterval;
    alarm_ = absl::InfiniteFuture();
    next = next_alarm_locked(earliest);
  }
  for (const Expired& each : expired) {
    each.source.cancel(describe_error([&] {
                         return absl::DeadlineExceededError(
                             absl::StrCat("the deadline of \"", each.callee, "\" has passed"));
                       }),
                       runtime_.executor.get());
  }
  // If this throws, the timer runs again.
  schedule_alarm(next);
}

// The call goes on, because its caller may repeat it on another link. It stays in the table under the key of
// the closed link.
void ServedCalls::orphan_locked(const CallKey& key, const Running& running) {
  orphans_[{running.repeatable->caller, key.second}] = key;
}

ServedCalls::Calls::iterator ServedCalls::find_orphan_locked(const Worker& from, uint64_t call_id) {
  auto found = orphans_.find({from.incarnation, call_id});
  return found == orphans_.end() ? calls_.end() : calls_.find(found->second);
}

void ServedCalls::worker_lost(const Worker& caller, const absl::Status& reason) {
  std::vector<CancellationSource> sources;
  std::vector<Deduplicator::Answer> dropped;
  {
    MutexLock lock(mutex_);
    // Only repeatable calls need this. All others are cancelled when their links close, which happens at the
    // loss.
    for (const Deduplicator::Route& route : repeats_.forget(caller.incarnation)) {
      auto found = calls_.find({route.link, route.call});
      if (found != calls_.end()) sources.push_back(found->second.source);
    }
    dropped = repeats_.take_dropped();
  }
  for (const CancellationSource& source : sources) {
    source.cancel(absl::CancelledError(
                      absl::StrCat("worker \"", caller.name, "\" is disconnected: ", reason.message())),
                  runtime_.executor.get());
  }
}

void ServedCalls::cancel(const Worker& from, uint64_t link, uint64_t call_id, const absl::Status& reason) {
  std::optional<CancellationSource> source;
  {
    MutexLock lock(mutex_);
    auto found = calls_.find({link, call_id});
    // The caller sends a Cancel between two attempts on a new link, where the call has never arrived. If the
    // call is found nowhere, the Cancel is dropped. The call has ended, or `answered_below` or its deadline
    // will end it.
    if (found == calls_.end()) found = find_orphan_locked(from, call_id);
    if (found != calls_.end()) source = found->second.source;
  }
  if (source) source->cancel(reason, runtime_.executor.get());
}

void ServedCalls::cancel_link(uint64_t link, const absl::Status& reason, bool caller_is_lost) {
  slow_readers_.forget(link);
  std::vector<CancellationSource> sources;
  {
    MutexLock lock(mutex_);
    for (auto& [key, running] : calls_) {
      if (key.first != link) continue;
      // A caller that lost only its connection can repeat a repeatable call. It gets the answer of no other
      // call.
      if (running.repeatable == nullptr || caller_is_lost) {
        sources.push_back(running.source);
      } else {
        orphan_locked(key, running);
      }
    }
  }
  for (const CancellationSource& source : sources) source.cancel(reason, runtime_.executor.get());
}

void ServedCalls::leave(const absl::Status& reason) {
  MutexLock lock(mutex_);
  left_ = reason;
  for (const auto& [key, running] : calls_) roots_.insert(root_of(*running.request, running.caller));
}

absl::Status ServedCalls::check_leaving_locked(const IncomingCall& call) const {
  if (left_.ok() || call.reads_stream() || call.from.incarnation == runtime_.self.incarnation)
    return absl::OkStatus();
  // Calls that these cause have the same root, so nothing is added to roots_.
  const CallIdentity root = call.root();
  return root.caller == runtime_.self.incarnation || roots_.contains(root) ? absl::OkStatus() : left_;
}

void ServedCalls::stop(const absl::Status& reason) {
  std::vector<CancellationSource> sources;
  std::vector<Deduplicator::Answer> dropped;
  {
    MutexLock lock(mutex_);
    if (!stopped_.ok()) return;
    stopped_ = reason;
    for (const auto& [key, running] : calls_) sources.push_back(running.source);
    repeats_.clear();
    dropped = repeats_.take_dropped();
  }
  for (const CancellationSource& source : sources) source.cancel(reason, runtime_.executor.get());
}

void ServedCalls::leave_limits(const IncomingCall& call) {
  if (call.from.incarnation == runtime_.self.incarnation) return;
  MutexLock lock(mutex_);
  calls_of_callers_.leave(call.from.incarnation, call.bytes);
}

void ServedCalls::end(const IncomingCall& call) {
  served_.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  if (call.is_repeatable()) {
    --answers_in_progress_;
  } else {
    calls_.erase({call.link->number(), call.request().call_id()});
  }
}

std::vector<CallReport> ServedCalls::calls_in_progress() const {
  std::vector<CallReport> calls;
  MutexLock lock(mutex_);
  for (const auto& [key, running] : calls_) {
    calls.push_back({.identity = {running.caller, running.request->call_id()},
                     .parent = {},
                     .callee = callee_of(*running.request),
                     .peer = running.caller,
                     .since = running.since,
                     .deadline = running.deadline,
                     .state = running.state->load(std::memory_order_relaxed),
                     .target = from_proto(running.request->target())});
  }
  return calls;
}

std::size_t ServedCalls::in_progress() const {
  MutexLock lock(mutex_);
  return calls_.size() + answers_in_progress_;
}

}  // namespace gradwire::rpc
