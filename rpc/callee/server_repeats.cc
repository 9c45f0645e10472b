#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/callee/served_call.h"
#include "gradwire/rpc/callee/server.h"
#include "gradwire/rpc/caller/repeatable_request.h"
#include "gradwire/rpc/link/link.h"

// How a server treats calls that their callers may repeat (proto/rpc.proto, "Repeated calls"): the Deduplicator says
// which request is which.
namespace gradwire::rpc {

struct Server::Repeatable {
  // Where its answer goes.
  std::shared_ptr<Link> link;
  uint64_t caller = 0;  // The incarnation.
  std::string caller_name;
  absl::Time deadline;
  // Ends it at its deadline once its link has closed: a caller without a connection cannot say that he gave up.
  uint64_t timer = 0;
};

namespace {

// An answer that may have to be sent again.
struct KeptAnswer {
  proto::Envelope envelope;
  std::vector<transport::Buffer> buffers;
};

}  // namespace

absl::Status Server::check_repeatable(const proto::Request& request) {
  if (request.has_result_rref() || request.order_key() != 0 || request.arguments().references_size() > 0 ||
      request.arguments().has_graph()) {
    return absl::InvalidArgumentError(
        "a call that is ordered, leaves its result here, carries references or belongs to an autograd "
        "context cannot "
        "be repeated");
  }
  return absl::OkStatus();
}

bool Server::arrive(const Worker& from, const std::shared_ptr<Link>& link, const proto::Request& request,
                    absl::Time arrived, const CancellationSource& source, absl::Status& stopped) {
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
                              {key.first, key.second, request.attempt()}, arrived);
    dropped = repeats_.take_dropped();
    for (const Deduplicator::Route& route : arrival.unwanted) {
      auto found = calls_.find({route.link, route.call});
      if (found != calls_.end()) unwanted.push_back(found->second.source);
    }
    if (arrival.verdict == Deduplicator::Verdict::kRun) {
      auto repeatable = std::make_shared<Repeatable>(
          Repeatable{link, from.incarnation, from.name, deadline_of(request, arrived)});
      calls_.try_emplace(key, Running{source, std::move(repeatable), &request, from.incarnation, arrived});
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
  for (const CancellationSource& call : unwanted) {
    call.cancel(absl::CancelledError(absl::StrCat("worker \"", from.name, "\" gave up")));
  }
  if (arrival.verdict == Deduplicator::Verdict::kAnswered) {
    const auto& kept = *std::static_pointer_cast<const KeptAnswer>(arrival.answer);
    proto::Envelope envelope = kept.envelope;
    envelope.mutable_response()->set_call_id(request.call_id());
    (void)link->send(envelope, kept.buffers);
  }
  return arrival.verdict == Deduplicator::Verdict::kRun;
}

std::shared_ptr<Link> Server::end_repeatable(const ServedCall& call, const proto::Envelope& envelope,
                                             const std::vector<transport::Buffer>& buffers) {
  auto kept = std::make_shared<KeptAnswer>();
  const proto::Payload& result = envelope.response().result();
  if (result.references_size() > 0 || result.has_graph()) {
    // What they count is counted once.
    status_to_proto(with_worker(absl::UnavailableError(absl::StrCat(
                                    "\"", call.callee(),
                                    "\" has run, but its connection broke, and an answer with "
                                    "references or from an autograd context cannot be sent again")),
                                agent_.self().name),
                    *kept->envelope.mutable_response()->mutable_status());
  } else {
    kept->envelope = envelope;
    kept->buffers = buffers;
  }
  const uint64_t bytes = byte_size(kept->envelope, kept->buffers);
  std::shared_ptr<Link> link = call.shared_link();
  uint64_t timer = 0;
  bool schedule = false;
  std::shared_ptr<Repeatable> ended;
  std::vector<Deduplicator::Answer> dropped;
  const absl::Time now = Clock::system().now();
  {
    MutexLock lock(mutex_);
    ++answers_under_way_;
    auto route = repeats_.end(call.from().incarnation, call.request().request_id(),
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
  if (timer != 0) agent_.timers().cancel(timer);
  if (schedule) {
    agent_.timers().schedule(now + retry_.keep_answers, [this] { expire_answers(); });
  }
  return link;
}

void Server::expire_answers() {
  std::vector<Deduplicator::Answer> dropped;
  absl::Time next;
  {
    MutexLock lock(mutex_);
    next = repeats_.expire(Clock::system().now());
    dropped = repeats_.take_dropped();
    expires_ = next != absl::InfiniteFuture();
  }
  agent_.timers().schedule(next, [this] { expire_answers(); });
}

void Server::count(AgentTables& tables) const {
  MutexLock lock(mutex_);
  tables.served_calls = calls_.size() + answers_under_way_;
  tables.kept_answers = repeats_.answers();
  tables.orphaned_calls = orphans_.size();
  tables.repeat_callers = repeats_.callers();
  tables.remembered_answers = repeats_.remembered();
}

void Server::orphan_locked(const CallKey& key, Running& running) {
  Repeatable& call = *running.repeatable;
  orphans_[{call.caller, key.second}] = key;
  if (call.timer != 0) return;
  call.timer = agent_.timers().schedule(call.deadline, [source = running.source, name = call.caller_name] {
    source.cancel(absl::CancelledError(
        absl::StrCat("worker \"", name, "\" lost its connection, and does not wait any longer")));
  });
}

Server::Calls::iterator Server::find_orphan_locked(const Worker& from, uint64_t call_id) {
  auto found = orphans_.find({from.incarnation, call_id});
  return found == orphans_.end() ? calls_.end() : calls_.find(found->second);
}

void Server::worker_lost(const Worker& caller, const absl::Status& reason) {
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

}  // namespace gradwire::rpc
