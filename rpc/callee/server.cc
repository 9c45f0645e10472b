#include "gradwire/rpc/callee/server.h"

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/caller/answer_by.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {
namespace {

// How long a running ordered call keeps the next from starting: it has started for certain by then, and may
// be waiting for the next one in a way that nobody sees.
constexpr absl::Duration kStartTime = absl::Milliseconds(200);

absl::Status check_repeatable(const proto::Request& request) {
  if (request.has_result_rref() || request.order_key() != 0 || request.arguments().references_size() > 0 ||
      request.arguments().has_graph()) {
    return absl::InvalidArgumentError(
        "a call that is ordered, leaves its result here, carries references or belongs to an autograd "
        "context cannot "
        "be repeated");
  }
  return absl::OkStatus();
}

}  // namespace

Server::Server(AgentRuntime& runtime, RRefService& rrefs)
    : runtime_(runtime), rrefs_(rrefs), calls_(runtime), parts_{runtime, rrefs, calls_, fetch_cost_} {}

void Server::refuse(Link& link, uint64_t call_id, const absl::Status& status) {
  proto::Envelope envelope;
  envelope.mutable_response()->set_call_id(call_id);
  status_to_proto(with_worker(status, runtime_.self.name), *envelope.mutable_response()->mutable_status());
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
  const absl::Time deadline = deadline_of(request, arrived);
  std::shared_ptr<Agent> agent = runtime_.agent.lock();
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
  IncomingCall incoming = {
      from,    link,    std::move(envelope), std::move(buffers), *std::move(references), source.token(),
      arrived, deadline};
  absl::Status stopped;
  if (!calls_.begin(incoming, source, stopped)) return;
  auto call = std::make_shared<ServedCall>(parts_, std::move(agent), std::move(incoming));
  if (!stopped.ok()) {
    call->fail(stopped);
    return;
  }
  if (call->incoming().request().has_result_rref()) {
    rrefs_.values().begin(result, from_proto(call->incoming().request().result_fork()), from);
  }
  if (!call->incoming().request().has_target()) {
    admit(std::move(call), nullptr);
    return;
  }
  // Found at once in the usual case, so that calls on an object queue in the order in which they arrived.
  rrefs_.values().find(
      from_proto(call->incoming().request().target()), call->incoming().deadline,
      [this, call](absl::StatusOr<OwnedValue> target) mutable {
        if (!call->search().take()) return;
        if (!target.ok()) {
          call->fail(with_context(target.status(), absl::StrCat("\"", call->callee(), "\"")));
          return;
        }
        std::shared_ptr<Strand> strand = target->strand;
        call->set_target(*std::move(target));
        admit(std::move(call), strand);
      });
  // It may never come, and nobody may want it any more.
  if (!call->search().taken()) {
    // The token keeps this: it must not keep the token.
    source.token().on_cancelled([weak = call->weak_from_this()] {
      std::shared_ptr<ServedCall> waiting = weak.lock();
      if (waiting != nullptr && waiting->search().take()) waiting->fail(waiting->incoming().token.reason());
    });
  }
}

// Before it queues: a call that waits at the step barrier of its context must not hold the turn of one that
// has passed it.
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
  // A copy: the call may have begun to run before admit() returns.
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
  if (object_strand != nullptr) {
    enqueue_serial(call, object_strand);
    return;
  }
  if (call->incoming().request().order_key() != 0) {
    order_strand(call->incoming().from, call->incoming().request().order_key())
        ->post([this, call = std::move(call)](Strand::Next next) {
          // Started is what was promised, not finished: the next may start when this one returns, waits, or
          // has run for a while.
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
  const bool started = strand->post([this, call, strand = strand.get()](Strand::Next next) {
    if (!call->turn().take()) {
      next();
      return;
    }
    if (const uint64_t timer = call->turn().timer(); timer != 0) runtime_.timers->cancel(timer);
    strand->set_holder(call);
    // The next method starts when this one's Future, if it returned one, has completed.
    call->on_ended(std::move(next));
    call->run();
  });
  if (started || call->incoming().deadline == absl::InfiniteFuture()) return;
  const absl::Time until = answer_by(runtime_.timers->clock().now(), call->incoming().deadline);
  const uint64_t timer = runtime_.timers->schedule(
      until, [weak = std::weak_ptr<ServedCall>(call), strand = std::weak_ptr<Strand>(strand)] {
        const std::shared_ptr<ServedCall> waiting = weak.lock();
        if (waiting == nullptr || !waiting->turn().take()) return;
        const std::shared_ptr<Strand> queue = strand.lock();
        const auto runs =
            std::static_pointer_cast<const ServedCall>(queue == nullptr ? nullptr : queue->holder());
        waiting->fail(absl::DeadlineExceededError(
            absl::StrCat("\"", waiting->callee(), "\" waited in vain for its turn on a serial object",
                         runs == nullptr ? ""
                                         : absl::StrCat(": \"", runs->callee(), "\", called by worker \"",
                                                        runs->incoming().from.name, "\", has not ended"))));
      });
  call->turn().set_timer(timer);
  // Its turn may have come before the timer was known.
  if (call->turn().taken()) runtime_.timers->cancel(timer);
}

std::shared_ptr<Strand> Server::order_strand(const Worker& from, uint64_t key) {
  MutexLock lock(mutex_);
  std::weak_ptr<Strand>& slot = strands_[{from.incarnation, key}];
  std::shared_ptr<Strand> strand = slot.lock();
  if (strand == nullptr) {
    strand = std::make_shared<Strand>(runtime_.executor);
    slot = strand;
    // Callers' threads come and go: forget the strands that nobody uses any more.
    if (strands_.size() > 1024) {
      absl::erase_if(strands_, [](const auto& entry) { return entry.second.expired(); });
    }
  }
  return strand;
}

}  // namespace gradwire::rpc
