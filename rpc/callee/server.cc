#include "gradwire/rpc/callee/server.h"

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/caller/answer_by.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/rref/service.h"
#include "gradwire/rpc/trace/trace_codec.h"

// The way of a request from its arrival to the executor. The thread of the transport runs on_request() for
// one request after the other, so it must not block, and calls of one connection reach each queue in the
// order of their arrival.
namespace gradwire::rpc {
namespace {

// Maximum time for which a running ordered call delays the start of the next one. By then it has certainly
// started. It may be waiting for the next call in a way that BlockingListener does not notice.
constexpr absl::Duration kStartTime = absl::Milliseconds(200);

absl::Status check_repeatable(const proto::Request& request) {
  if (request.has_result_rref() || request.order_key() != 0 || request.arguments().references_size() > 0 ||
      request.arguments().has_graph()) {
    return absl::InvalidArgumentError(
        "a request must not have a request_id if it is ordered, leaves its result at the callee, carries "
        "references, or belongs to an autograd context");
  }
  return absl::OkStatus();
}

}  // namespace

Server::Server(AgentRuntime& runtime, RRefService& rrefs)
    : runtime_(runtime),
      rrefs_(rrefs),
      calls_(runtime),
      parts_{runtime, rrefs, calls_, fetch_cost_},
      order_strands_(runtime.executor) {}

void Server::refuse(Link& link, uint64_t call_id, const absl::Status& status) {
  proto::Envelope envelope;
  envelope.mutable_response()->set_call_id(call_id);
  status_to_proto(with_worker(status, runtime_.self.name), *envelope.mutable_response()->mutable_status());
  (void)link.send(envelope, {});
}

// The order of the steps matters:
//   1. Refuse a malformed request. No correct worker sends one, so nothing needs to be given back.
//   2. Receive the references.
//   3. Ask the policy, and the limits of the caller. A call that they refuse leaves nothing behind, since
//      only step 2 has come before.
//   4. Enter the call into the table, if its caller may have one more. A repetition of a known request ends
//      here.
//   5. Register a remote result. A later request may name it as its target before the value exists.
//   6. Wait for the target, if there is one, then for admission (admit), then for a place in the queue
//      (enqueue).
void Server::on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                        std::vector<transport::Buffer> buffers) {
  if ((*envelope)->request().has_service()) {
    serve_service(from, link, std::move(envelope), std::move(buffers));
    return;
  }
  const absl::Time arrived = Clock::system().now();
  const proto::Request& request = (*envelope)->request();
  const uint64_t call_id = request.call_id();
  const absl::Time deadline = deadline_of(request, arrived);
  std::shared_ptr<Agent> agent = runtime_.agent.lock();
  // The agent is being destroyed. Its links close, which answers the caller.
  if (agent == nullptr) return;

  const Id result = from_proto(request.result_rref());
  if (request.has_result_rref() &&
      (result.origin != from.incarnation || from_proto(request.result_fork()).origin != from.incarnation)) {
    refuse(*link, call_id,
           absl::InvalidArgumentError(
               absl::StrCat("malformed request from worker \"", from.name,
                            "\": the ids of the remote result belong to another worker")));
    return;
  }
  if (request.request_id() != 0) {
    if (absl::Status allowed = check_repeatable(request); !allowed.ok()) {
      refuse(*link, call_id, allowed);
      return;
    }
  }
  absl::StatusOr<std::shared_ptr<const TraceContext>> trace = trace_of(request);
  if (!trace.ok()) {
    refuse(*link, call_id, trace.status());
    return;
  }
  // Receive the references before anything else can fail. From here on, destroying the handles gives the
  // references back, whatever happens to the call.
  auto references = rrefs_.receive(request.arguments(), from);
  if (!references.ok()) {
    refuse(*link, call_id, references.status());
    return;
  }
  if (runtime_.policy != nullptr) {
    // Destroying the handles gives the references back. The caller of a remote() takes its reference back by
    // itself, as after any failed creation.
    if (absl::Status allowed = runtime_.policy->check_request(from, request, arrived); !allowed.ok()) {
      refuse(*link, call_id, allowed);
      return;
    }
  }
  absl::Status refused = calls_.check_reader(from, *link);
  if (refused.ok() && request.has_result_rref()) refused = rrefs_.check_hold(from);
  if (!refused.ok()) {
    refuse(*link, call_id, refused);
    return;
  }
  const uint64_t bytes = bytes_of(envelope, buffers);
  CancellationSource source;
  IncomingCall incoming = {from,
                           link,
                           std::move(envelope),
                           std::move(buffers),
                           *std::move(references),
                           source.token(),
                           arrived,
                           deadline,
                           bytes,
                           *std::move(trace)};
  auto call = std::make_shared<ServedCall>(parts_, std::move(agent), std::move(incoming));
  const ServedCalls::Begun begun = calls_.begin(call->incoming(), source, call->trace().state, refused);
  if (begun != ServedCalls::Begun::kRun) {
    if (begun == ServedCalls::Begun::kRefused) refuse(*link, call_id, refused);
    // Destroying the call gives the references back.
    call->trace().dropped = true;
    return;
  }
  call->trace().record = runtime_.recorder->begin(CallEvent::Kind::kServed, call->incoming().from.incarnation,
                                                  call_id, {}, call->callee(), arrived);
  if (call->incoming().request().has_result_rref()) {
    rrefs_.values().begin(result, from_proto(call->incoming().request().result_fork()), from);
  }
  if (!call->incoming().request().has_target()) {
    admit(std::move(call), nullptr);
    return;
  }
  call->trace().at(CallState::kWaitingForObject);
  // Usually the target exists, and the callback runs inside find(). So calls on one object are queued in the
  // order in which they arrive.
  rrefs_.values().find(
      from_proto(call->incoming().request().target()), call->incoming().deadline,
      [this, call](absl::StatusOr<OwnedValue> target) mutable {
        // The call was cancelled, and has failed, while it waited.
        if (!call->waits().target.claim()) return;
        if (!target.ok()) {
          call->fail(with_context(target.status(), absl::StrCat("\"", call->callee(), "\"")));
          return;
        }
        // Taken before set_target() moves the target.
        std::shared_ptr<Strand> strand = target->strand;
        call->set_target(*std::move(target));
        admit(std::move(call), strand);
      });
  // The target may never be created. So a call that waits for it must also end when it is cancelled.
  if (!call->waits().target.claimed()) {
    // The token owns this callback, so the callback must not own the call, which owns the token.
    source.token().on_cancelled([weak = call->weak_from_this()] {
      std::shared_ptr<ServedCall> waiting = weak.lock();
      if (waiting != nullptr && waiting->waits().target.claim())
        waiting->fail(waiting->incoming().token.reason());
    });
  }
}

// Admission comes before queueing: a call that waits at the step barrier of its context must not block calls
// behind it in a queue that have passed theirs.
void Server::admit(std::shared_ptr<ServedCall> call, std::shared_ptr<Strand> object_strand) {
  if (!call->incoming().request().arguments().has_graph()) {
    enqueue(std::move(call), object_strand);
    return;
  }
  GraphHook* hook = runtime_.graph_hook;
  if (hook == nullptr) {
    call->fail(absl::FailedPreconditionError(absl::StrCat(
        "\"", call->callee(),
        "\" was called in an autograd context, but this program was linked without //autograd")));
    return;
  }
  call->trace().at(CallState::kWaitingForContext);
  // A copy, because the call may run, and change its request, before hook->admit() returns.
  const proto::Graph graph = call->incoming().request().arguments().graph();
  hook->admit(call->incoming().from, graph, answer_by(call->incoming().arrived, call->incoming().deadline),
              [this, call, object_strand = std::move(object_strand)](absl::Status status) {
                if (status.ok()) {
                  enqueue(call, object_strand);
                } else {
                  call->fail(with_context(status, absl::StrCat("\"", call->callee(), "\"")));
                }
              });
}

void Server::enqueue(std::shared_ptr<ServedCall> call, const std::shared_ptr<Strand>& object_strand) {
  call->trace().at(CallState::kQueued);
  if (object_strand != nullptr) {
    enqueue_serial(call, object_strand);
    return;
  }
  if (call->incoming().request().order_key() != 0) {
    order_strands_.find(call->incoming().from.incarnation, call->incoming().request().order_key())
        ->post([this, call = std::move(call)](Strand::Next next) {
          // Ordered calls start in order; they need not finish in order. The next call may start when this
          // one returns, when it blocks, or after kStartTime.
          auto once = std::make_shared<Strand::Next>(std::move(next));
          const uint64_t timer =
              runtime_.timers->schedule(runtime_.timers->clock().now() + kStartTime, [once] { (*once)(); });
          BlockingListener listener = [once] { (*once)(); };
          BlockingListener* previous = set_blocking_listener(&listener);
          call->run();
          set_blocking_listener(previous);
          runtime_.timers->cancel(timer);
          (*once)();
        });
    return;
  }
  TaskCost* const cost = call->cost();
  runtime_.executor->post_clean([call = std::move(call)] { call->run(); }, cost);
}

void Server::enqueue_serial(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand) {
  // Two events compete for a call that waits: its turn, and its deadline. The turn may be far away, because
  // the running method may take any time, or wait for a Future. So a timer answers the call earlier. The
  // first of the two claims the call, the other one does nothing.
  // The task holds a plain pointer to the strand. A queued task keeps its strand alive, and a shared pointer
  // would be a cycle.
  const bool started = strand->post([this, call, strand = strand.get()](Strand::Next next) {
    if (!call->waits().turn.claim()) {
      // The deadline came first. Let the next call start.
      next();
      return;
    }
    if (const uint64_t timer = call->waits().turn.timer(); timer != 0) runtime_.timers->cancel(timer);
    strand->set_holder(call);
    // The next method starts when this one has ended. If it returns a Future, that is when the Future
    // completes.
    call->on_ended(std::move(next));
    call->run();
  });
  if (!started) turn_waits_.add(call, strand);
  // No timer is needed for a call that starts at once, or that has no deadline.
  if (started || call->incoming().deadline == absl::InfiniteFuture()) return;
  const absl::Time until = answer_by(runtime_.timers->clock().now(), call->incoming().deadline);
  const uint64_t timer = runtime_.timers->schedule(
      // Weak pointers, so that the timer does not keep a call, with its arguments, after its end.
      until, [weak = std::weak_ptr<ServedCall>(call), strand = std::weak_ptr<Strand>(strand)] {
        const std::shared_ptr<ServedCall> waiting = weak.lock();
        if (waiting == nullptr || !waiting->waits().turn.claim()) return;
        const std::shared_ptr<Strand> queue = strand.lock();
        const auto running =
            std::static_pointer_cast<const ServedCall>(queue == nullptr ? nullptr : queue->holder());
        waiting->fail(absl::DeadlineExceededError(absl::StrCat(
            "\"", waiting->callee(), "\" expired while it waited for its turn on a serial object",
            running == nullptr ? ""
                               : absl::StrCat(": \"", running->callee(), "\", called by worker \"",
                                              running->incoming().from.name, "\", is still running"))));
      });
  call->waits().turn.set_timer(timer);
  // The turn may have come before set_timer(). Then cancel the timer here.
  if (call->waits().turn.claimed()) runtime_.timers->cancel(timer);
}

}  // namespace gradwire::rpc
