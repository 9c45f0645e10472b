#include "gradwire/rpc/callee/server.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/agent/agent_impl.h"
#include "gradwire/rpc/callee/served_call.h"
#include "gradwire/rpc/caller/answer_by.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {
namespace {

// How long a running ordered call keeps the next from starting: it has started for certain by then, and may
// be waiting for the next one in a way that nobody sees.
constexpr absl::Duration kStartTime = absl::Milliseconds(200);

}  // namespace

Server::Server(Agent& agent, RRefService& rrefs, std::shared_ptr<ThreadPool> executor,
               const RetryOptions& retry)
    : agent_(agent), rrefs_(rrefs), executor_(std::move(executor)), retry_(retry), repeats_(retry) {}

void Server::refuse(Link& link, uint64_t call_id, const absl::Status& status) {
  proto::Envelope envelope;
  envelope.mutable_response()->set_call_id(call_id);
  status_to_proto(with_worker(status, agent_.self().name), *envelope.mutable_response()->mutable_status());
  (void)link.send(envelope, {});
}

void Server::on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                        std::vector<transport::Buffer> buffers) {
  if ((*envelope)->request().has_service()) {
    serve_service(from, link, std::move(envelope), std::move(buffers));
    return;
  }
  const absl::Time arrived = Clock::system().now();
  const proto::Request& request = (*envelope)->request();
  const uint64_t call_id = request.call_id();
  std::shared_ptr<Agent> agent = agent_.weak_from_this().lock();
  if (agent == nullptr) return;

  const Id result = from_proto(request.result_rref());
  if (request.has_result_rref() &&
      (result.origin != from.incarnation || from_proto(request.result_fork()).origin != from.incarnation)) {
    refuse(*link, call_id, absl::InvalidArgumentError("the ids of a remote result are not its caller's"));
    return;
  }
  if (request.request_id() != 0) {
    if (absl::Status allowed = check_repeatable(request); !allowed.ok()) {
      refuse(*link, call_id, allowed);
      return;
    }
  }
  // References first, and whatever happens to the call: dropping the handles gives them back.
  auto references = rrefs_.receive(request.arguments(), from);
  if (!references.ok()) {
    refuse(*link, call_id, references.status());
    return;
  }
  CancellationSource source;
  absl::Status stopped;
  if (request.request_id() != 0) {
    if (!arrive(from, link, request, arrived, source, stopped)) return;
  } else {
    MutexLock lock(mutex_);
    stopped = stopped_;
    // A second request with the number of one that runs can only be a repetition.
    if (stopped.ok() && !calls_
                             .try_emplace({link->number(), call_id},
                                          Running{source, nullptr, &request, from.incarnation, arrived})
                             .second)
      return;
  }
  auto call = std::make_shared<ServedCall>(
      ServedCall::Parts{this, std::move(agent), from, link, std::move(envelope), std::move(buffers),
                        *std::move(references), source.token(), arrived});
  if (!stopped.ok()) {
    call->fail(stopped);
    return;
  }
  if (call->request().has_result_rref()) {
    rrefs_.begin_value(result, from_proto(call->request().result_fork()), from);
  }
  if (!call->request().has_target()) {
    admit(std::move(call), nullptr);
    return;
  }
  // Found at once in the usual case, so that calls on an object queue in the order in which they arrived.
  rrefs_.find(from_proto(call->request().target()), call->deadline(),
              [this, call](absl::StatusOr<RRefService::Owned> target) mutable {
                if (!call->stop_waiting()) return;
                if (!target.ok()) {
                  call->fail(with_context(target.status(), absl::StrCat("\"", call->callee(), "\"")));
                  return;
                }
                std::shared_ptr<Strand> strand = target->strand;
                call->set_target(*std::move(target));
                admit(std::move(call), strand);
              });
  // It may never come, and nobody may want it any more.
  if (call->waits()) {
    // The token keeps this: it must not keep the token.
    source.token().on_cancelled([weak = call->weak_from_this()] {
      std::shared_ptr<ServedCall> waiting = weak.lock();
      if (waiting != nullptr && waiting->stop_waiting()) waiting->fail(waiting->token().reason());
    });
  }
}

// Before it queues: a call that waits at the gate of its context must not hold the turn of one that has
// passed it.
void Server::admit(std::shared_ptr<ServedCall> call, std::shared_ptr<Strand> object_strand) {
  if (!call->request().arguments().has_graph()) {
    enqueue(std::move(call), object_strand);
    return;
  }
  GraphHook* hook = agent_.graph_hook();
  if (hook == nullptr) {
    call->fail(absl::FailedPreconditionError(absl::StrCat(
        "\"", call->callee(),
        "\" was called in an autograd context, but this program was linked without //autograd")));
    return;
  }
  // A copy: the call may have begun to run before admit() returns.
  const proto::Graph graph = call->request().arguments().graph();
  hook->admit(call->from(), graph, answer_by(call->arrived(), call->deadline()),
              [this, call, object_strand = std::move(object_strand)](absl::Status status) {
                if (status.ok()) {
                  enqueue(call, object_strand);
                } else {
                  call->fail(with_context(status, absl::StrCat("\"", call->callee(), "\"")));
                }
              });
}

void Server::enqueue(std::shared_ptr<ServedCall> call, const std::shared_ptr<Strand>& object_strand) {
  if (object_strand != nullptr) {
    enqueue_serial(call, object_strand);
    return;
  }
  if (call->request().order_key() != 0) {
    order_strand(call->from(), call->request().order_key())
        ->post([this, call = std::move(call)](Strand::Next next) {
          // Started is what was promised, not finished: the next may start when this one returns, waits, or
          // has run for a while.
          auto once = std::make_shared<Strand::Next>(std::move(next));
          const uint64_t timer =
              agent_.timers().schedule(agent_.timers().clock().now() + kStartTime, [once] { (*once)(); });
          BlockingListener listener = [once] { (*once)(); };
          BlockingListener* previous = set_blocking_listener(&listener);
          call->run();
          set_blocking_listener(previous);
          agent_.timers().cancel(timer);
          (*once)();
        });
    return;
  }
  TaskCost* const cost = call->cost();
  executor_->post_clean([call = std::move(call)] { call->run(); }, cost);
}

void Server::enqueue_serial(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand) {
  const bool started = strand->post([this, call, strand = strand.get()](Strand::Next next) {
    if (!call->take_turn()) {
      next();
      return;
    }
    if (const uint64_t timer = call->turn_timer(); timer != 0) agent_.timers().cancel(timer);
    strand->set_holder(call);
    // The next method starts when this one's Future, if it returned one, has completed.
    call->on_ended(std::move(next));
    call->run();
  });
  if (started || call->deadline() == absl::InfiniteFuture()) return;
  const absl::Time until = answer_by(agent_.timers().clock().now(), call->deadline());
  const uint64_t timer = agent_.timers().schedule(
      until, [weak = std::weak_ptr<ServedCall>(call), strand = std::weak_ptr<Strand>(strand)] {
        const std::shared_ptr<ServedCall> waiting = weak.lock();
        if (waiting == nullptr || !waiting->take_turn()) return;
        const std::shared_ptr<Strand> queue = strand.lock();
        const auto runs =
            std::static_pointer_cast<const ServedCall>(queue == nullptr ? nullptr : queue->holder());
        waiting->fail(absl::DeadlineExceededError(
            absl::StrCat("\"", waiting->callee(), "\" waited in vain for its turn on a serial object",
                         runs == nullptr ? ""
                                         : absl::StrCat(": \"", runs->callee(), "\", called by worker \"",
                                                        runs->from().name, "\", has not ended"))));
      });
  call->set_turn_timer(timer);
  // Its turn may have come before the timer was known.
  if (call->had_turn()) agent_.timers().cancel(timer);
}

std::shared_ptr<Strand> Server::order_strand(const Worker& from, uint64_t key) {
  MutexLock lock(mutex_);
  std::weak_ptr<Strand>& slot = strands_[{from.incarnation, key}];
  std::shared_ptr<Strand> strand = slot.lock();
  if (strand == nullptr) {
    strand = std::make_shared<Strand>(executor_);
    slot = strand;
    // Callers' threads come and go: forget the strands that nobody uses any more.
    if (strands_.size() > 1024) {
      absl::erase_if(strands_, [](const auto& entry) { return entry.second.expired(); });
    }
  }
  return strand;
}

void Server::cancel(const Worker& from, uint64_t link, uint64_t call_id, const absl::Status& reason) {
  absl::optional<CancellationSource> source;
  {
    MutexLock lock(mutex_);
    auto found = calls_.find({link, call_id});
    if (found == calls_.end()) found = find_orphan_locked(from, call_id);
    if (found != calls_.end()) source = found->second.source;
  }
  if (source) source->cancel(reason);
}

void Server::cancel_link(uint64_t link, const absl::Status& reason, bool caller_is_lost) {
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

void Server::stop(const absl::Status& reason) {
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

void Server::ended(const ServedCall& call) {
  served_.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  if (call.is_repeatable()) {
    --answers_under_way_;
  } else {
    calls_.erase({call.link().number(), call.request().call_id()});
  }
}

std::vector<std::string> Server::running_callees() const {
  std::vector<std::string> callees;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, running] : calls_) {
      callees.push_back(absl::StrCat("\"", callee_of(*running.request), "\""));
    }
  }
  std::sort(callees.begin(), callees.end());
  callees.erase(std::unique(callees.begin(), callees.end()), callees.end());
  return callees;
}

std::vector<Server::CallUnderWay> Server::calls_under_way() const {
  std::vector<CallUnderWay> calls;
  MutexLock lock(mutex_);
  for (const auto& [key, running] : calls_) {
    calls.push_back({callee_of(*running.request), running.caller, running.since});
  }
  return calls;
}

std::size_t Server::under_way() const {
  MutexLock lock(mutex_);
  return calls_.size() + answers_under_way_;
}

}  // namespace gradwire::rpc
