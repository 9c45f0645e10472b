#include "gradwire/rpc/callee/served_calls.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/caller/repeatable_request.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/link.h"

namespace gradwire::rpc {

absl::Time deadline_of(const proto::Request& request, absl::Time arrived) {
  return request.timeout_us() <= 0 ? absl::InfiniteFuture()
                                   : arrived + absl::Microseconds(request.timeout_us());
}

std::string callee_of(const proto::Request& request) {
  switch (request.callee_case()) {
    case proto::Request::kFunction:
      return request.function();
    case proto::Request::kMethod:
      return request.method();
    case proto::Request::kConstructor:
      return request.constructor();
    case proto::Request::kOperator:
      return request.operator_();
    case proto::Request::kScript:
      return request.script();
    case proto::Request::kFetch:
      return "to_here";
    default:
      return "nothing";
  }
}

struct ServedCalls::Repeatable {
  // Where its answer goes.
  std::shared_ptr<Link> link;
  uint64_t caller = 0;  // The incarnation.
  std::string caller_name;
  absl::Time deadline;
  // Ends it at its deadline once its link has closed: a caller without a connection cannot say that it gave
  // up.
  uint64_t timer = 0;
};

namespace {

// An answer that may have to be sent again.
struct KeptAnswer {
  proto::Envelope envelope;
  std::vector<transport::Buffer> buffers;
};

}  // namespace

ServedCalls::ServedCalls(AgentRuntime& runtime) : runtime_(runtime), repeats_(runtime.options.retry) {}

bool ServedCalls::begin(const IncomingCall& call, const CancellationSource& source, absl::Status& stopped) {
  if (call.is_repeatable()) return begin_repeatable(call, source, stopped);
  MutexLock lock(mutex_);
  stopped = stopped_;
  if (!stopped.ok()) return true;
  // A second request with the number of one that runs can only be a repetition.
  return calls_
      .try_emplace({call.link->number(), call.request().call_id()},
                   Running{source, nullptr, &call.request(), call.from.incarnation, call.arrived})
      .second;
}

bool ServedCalls::begin_repeatable(const IncomingCall& call, const CancellationSource& source,
                                   absl::Status& stopped) {
  const proto::Request& request = call.request();
  const Worker& from = call.from;
  const std::shared_ptr<Link>& link = call.link;
  const CallKey key{link->number(), request.call_id()};
  Deduplicator::Arrival arrival;
  std::vector<CancellationSource> unwanted;
  std::vector<Deduplicator::Answer> dropped;
  {
    MutexLock lock(mutex_);
    stopped = stopped_;
    if (!stopped.ok()) return true;
    // The same message twice.
    if (calls_.contains(key)) return false;
    arrival = repeats_.arrive(from.incarnation, request.request_id(), request.answered_below(),
                              {key.first, key.second, request.attempt()}, call.arrived);
    dropped = repeats_.take_dropped();
    for (const Deduplicator::Route& route : arrival.unwanted) {
      auto found = calls_.find({route.link, route.call});
      if (found != calls_.end()) unwanted.push_back(found->second.source);
    }
    if (arrival.verdict == Deduplicator::Verdict::kRun) {
      auto repeatable =
          std::make_shared<Repeatable>(Repeatable{link, from.incarnation, from.name, call.deadline});
      calls_.try_emplace(key,
                         Running{source, std::move(repeatable), &request, from.incarnation, call.arrived});
    } else if (arrival.verdict == Deduplicator::Verdict::kAttached) {
      auto found = calls_.find({arrival.before.link, arrival.before.call});
      if (found != calls_.end()) {
        Running running = std::move(found->second);
        calls_.erase(found);
        orphans_.erase({from.incarnation, arrival.before.call});
        running.repeatable->link = link;
        calls_.try_emplace(key, std::move(running));
      }
    }
  }
  for (const CancellationSource& other : unwanted) {
    other.cancel(absl::CancelledError(absl::StrCat("worker \"", from.name, "\" gave up")));
  }
  if (arrival.verdict == Deduplicator::Verdict::kAnswered) {
    const auto& kept = *std::static_pointer_cast<const KeptAnswer>(arrival.answer);
    proto::Envelope envelope = kept.envelope;
    envelope.mutable_response()->set_call_id(request.call_id());
    (void)link->send(envelope, kept.buffers);
  }
  return arrival.verdict == Deduplicator::Verdict::kRun;
}

std::shared_ptr<Link> ServedCalls::keep_answer(const IncomingCall& call, const proto::Envelope& envelope,
                                               const std::vector<transport::Buffer>& buffers) {
  auto kept = std::make_shared<KeptAnswer>();
  const proto::Payload& result = envelope.response().result();
  if (result.references_size() > 0 || result.has_graph()) {
    // References and graph nodes are counted once.
    status_to_proto(with_worker(absl::UnavailableError(absl::StrCat(
                                    "\"", callee_of(call.request()),
                                    "\" has run, but its connection broke, and an answer with "
                                    "references or from an autograd context cannot be sent again")),
                                runtime_.self.name),
                    *kept->envelope.mutable_response()->mutable_status());
  } else {
    kept->envelope = envelope;
    kept->buffers = buffers;
  }
  const uint64_t bytes = byte_size(kept->envelope, kept->buffers);
  std::shared_ptr<Link> link = call.link;
  uint64_t timer = 0;
  bool schedule = false;
  std::shared_ptr<Repeatable> ended;
  std::vector<Deduplicator::Answer> dropped;
  const absl::Time now = Clock::system().now();
  {
    MutexLock lock(mutex_);
    ++answers_under_way_;
    auto route = repeats_.end(call.from.incarnation, call.request().request_id(),
                              stopped_.ok() ? std::move(kept) : nullptr, bytes, now);
    dropped = repeats_.take_dropped();
    auto found = route ? calls_.find({route->link, route->call}) : calls_.end();
    if (found != calls_.end()) {
      ended = std::move(found->second.repeatable);
      link = ended->link;
      timer = ended->timer;
      orphans_.erase({ended->caller, found->first.second});
      calls_.erase(found);
    }
    if (repeats_.answers() > 0 && stopped_.ok()) schedule = !std::exchange(expires_, true);
  }
  if (timer != 0) runtime_.timers->cancel(timer);
  if (schedule) {
    runtime_.timers->schedule(now + runtime_.options.retry.keep_answers, [this] { expire_answers(); });
  }
  return link;
}

bool ServedCalls::begin_service() {
  MutexLock lock(mutex_);
  if (!stopped_.ok()) return false;
  ++answers_under_way_;
  served_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void ServedCalls::end_service() {
  MutexLock lock(mutex_);
  --answers_under_way_;
}

void ServedCalls::expire_answers() {
  std::vector<Deduplicator::Answer> dropped;
  absl::Time next;
  {
    MutexLock lock(mutex_);
    next = repeats_.expire(Clock::system().now());
    dropped = repeats_.take_dropped();
    expires_ = next != absl::InfiniteFuture();
  }
  runtime_.timers->schedule(next, [this] { expire_answers(); });
}

void ServedCalls::count(AgentTables& tables) const {
  MutexLock lock(mutex_);
  tables.served_calls = calls_.size() + answers_under_way_;
  tables.kept_answers = repeats_.answers();
  tables.orphaned_calls = orphans_.size();
  tables.repeat_callers = repeats_.callers();
  tables.remembered_answers = repeats_.remembered();
}

void ServedCalls::orphan_locked(const CallKey& key, Running& running) {
  Repeatable& call = *running.repeatable;
  orphans_[{call.caller, key.second}] = key;
  if (call.timer != 0) return;
  call.timer = runtime_.timers->schedule(call.deadline, [source = running.source, name = call.caller_name] {
    source.cancel(absl::CancelledError(
        absl::StrCat("worker \"", name, "\" lost its connection, and does not wait any longer")));
  });
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
    for (const Deduplicator::Route& route : repeats_.forget(caller.incarnation)) {
      auto found = calls_.find({route.link, route.call});
      if (found != calls_.end()) sources.push_back(found->second.source);
    }
    dropped = repeats_.take_dropped();
  }
  for (const CancellationSource& source : sources) {
    source.cancel(
        absl::CancelledError(absl::StrCat("worker \"", caller.name, "\" is gone: ", reason.message())));
  }
}

void ServedCalls::cancel(const Worker& from, uint64_t link, uint64_t call_id, const absl::Status& reason) {
  std::optional<CancellationSource> source;
  {
    MutexLock lock(mutex_);
    auto found = calls_.find({link, call_id});
    if (found == calls_.end()) found = find_orphan_locked(from, call_id);
    if (found != calls_.end()) source = found->second.source;
  }
  if (source) source->cancel(reason);
}

void ServedCalls::cancel_link(uint64_t link, const absl::Status& reason, bool caller_is_lost) {
  std::vector<CancellationSource> sources;
  {
    MutexLock lock(mutex_);
    for (auto& [key, running] : calls_) {
      if (key.first != link) continue;
      if (running.repeatable == nullptr || caller_is_lost) {
        sources.push_back(running.source);
      } else {
        orphan_locked(key, running);
      }
    }
  }
  for (const CancellationSource& source : sources) source.cancel(reason);
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
  for (const CancellationSource& source : sources) source.cancel(reason);
}

void ServedCalls::end(const IncomingCall& call) {
  served_.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  if (call.is_repeatable()) {
    --answers_under_way_;
  } else {
    calls_.erase({call.link->number(), call.request().call_id()});
  }
}

std::vector<ServedCalls::UnderWay> ServedCalls::calls_under_way() const {
  std::vector<UnderWay> calls;
  MutexLock lock(mutex_);
  for (const auto& [key, running] : calls_) {
    calls.push_back({callee_of(*running.request), running.caller, running.since});
  }
  return calls;
}

std::size_t ServedCalls::under_way() const {
  MutexLock lock(mutex_);
  return calls_.size() + answers_under_way_;
}

}  // namespace gradwire::rpc
