#include "gradwire/rpc/callee/server.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/callee/callee_list.h"
#include "gradwire/rpc/core/current_agent.h"
#include "gradwire/rpc/core/deadline.h"
#include "gradwire/rpc/link/ahead/send_ahead.h"
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
      services_{runtime, rrefs, calls_, fetch_cost_},
      order_strands_(runtime.executor) {}

void Server::refuse(Link& link, uint64_t call_id, const absl::Status& status) {
  EnvelopeBox envelope;
  envelope->mutable_response()->set_call_id(call_id);
  status_to_proto(with_worker(status, runtime_.self.name), *envelope->mutable_response()->mutable_status());
  (void)link.send(*envelope, {});
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
  const uint64_t call_id = (*envelope)->request().call_id();
  // The call, as soon as it is in the table.
  std::shared_ptr<ServedCall> call;
  try {
    accept(from, link, std::move(envelope), std::move(buffers), call);
  } catch (...) {
    absl::Status error = caught("accepting a request");
    if (call == nullptr) {
      refuse(*link, call_id, error);
    } else {
      call->fail(std::move(error));
    }
  }
}

void Server::accept(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr&& envelope,
                    std::vector<transport::Buffer>&& buffers, std::shared_ptr<ServedCall>& made) {
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
  if (!envelope->lost().ok()) {
    refuse(*link, call_id, with_context(envelope->lost(), "receiving the arguments of a call"));
    return;
  }
  if (runtime_.policy != nullptr) {
    // Destroying the handles gives the references back. The caller of a remote() takes its reference back by
    // itself, as after any failed creation.
    if (absl::Status allowed = runtime_.policy->check_request(from, request); !allowed.ok()) {
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
  auto call = std::make_shared<ServedCall>(services_, std::move(agent), std::move(incoming));
  // If begin() throws, the call is in no table.
  call->trace().dropped = true;
  const ServedCalls::Begun begun =
      calls_.begin(call->incoming(), std::move(source), call->trace().state, refused);
  call->trace().dropped = begun != ServedCalls::Begun::kRun;
  if (begun != ServedCalls::Begun::kRun) {
    if (begun == ServedCalls::Begun::kRefused) refuse(*link, call_id, refused);
    // Destroying the call gives the references back.
    return;
  }
  made = call;
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
  const Id target = from_proto(call->incoming().request().target());
  const uint64_t wait = rrefs_.values().find(
      target, answer_by(arrived, deadline), [this, call](absl::StatusOr<OwnedValue> target) mutable {
        go_on(call, [&] {
          if (!target.ok()) {
            call->fail(with_context(target.status(), absl::StrCat("\"", call->callee(), "\"")));
            return;
          }
          // Taken before set_target() moves the target.
          std::shared_ptr<Strand> strand = target->strand;
          call->set_target(*std::move(target));
          admit(call, strand);
        });
      });
  if (wait == 0) return;
  call->wait_at(CallState::kWaitingForObject, [this, target, wait](const absl::Status& reason) {
    rrefs_.values().give_up(target, wait, reason);
  });
}

void Server::go_on(const std::shared_ptr<ServedCall>& call, absl::FunctionRef<void()> step) noexcept {
  try {
    step();
  } catch (...) {
    call->fail(caught_in(call->callee()));
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
  const uint64_t wait = hook->admit(
      call->incoming().from, graph, answer_by(call->incoming().arrived, call->incoming().deadline),
      [this, call, object_strand = std::move(object_strand)](absl::Status status) {
        go_on(call, [&] {
          if (status.ok()) {
            enqueue(call, object_strand);
          } else {
            call->fail(with_context(status, absl::StrCat("\"", call->callee(), "\"")));
          }
        });
      });
  if (wait == 0) return;
  call->wait_at(CallState::kWaitingForContext,
                [hook, wait](const absl::Status& reason) { hook->give_up(wait, reason); });
}

void Server::enqueue(std::shared_ptr<ServedCall> call, const std::shared_ptr<Strand>& object_strand) {
  call->trace().at(CallState::kQueued);
  if (object_strand != nullptr) {
    enqueue_serial(call, object_strand);
    return;
  }
  if (call->incoming().request().order_key() != 0) {
    enqueue_ordered(call);
    return;
  }
  TaskCost* const cost = call->cost();
  runtime_.executor->post_clean([call = std::move(call)] { call->run(); }, cost);
}

void Server::enqueue_ordered(const std::shared_ptr<ServedCall>& call) {
  const std::shared_ptr<Strand> strand =
      order_strands_.find(call->incoming().from.incarnation, call->incoming().request().order_key());
  const uint64_t number = strand->post([this, call](Strand::Next next) {
    call->turn_wait().end(*runtime_.timers);
    // Ordered calls start in order; they need not finish in order. The next call may start when this
    // one returns, when it blocks, or after kStartTime.
    go_on(call, [&] {
      auto once = std::make_shared<Strand::Next>(std::move(next));
      const uint64_t timer =
          runtime_.timers->schedule(runtime_.timers->clock().now() + kStartTime, [once] { (*once)(); });
      BlockingListener listener = [once] { (*once)(); };
      {
        const BlockingListenerScope scope(listener);
        call->run();
      }
      runtime_.timers->cancel(timer);
      (*once)();
    });
  });
  if (number != 0) wait_for_turn(call, strand, number, "behind the ordered calls of its caller");
}

void Server::enqueue_serial(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand) {
  // The task holds a plain pointer to the strand. A queued task keeps its strand alive, and a shared pointer
  // would be a cycle.
  const uint64_t number = strand->post([this, call, strand = strand.get()](Strand::Next next) {
    call->turn_wait().end(*runtime_.timers);
    strand->set_holder(call);
    // The next method starts when this one has ended. If it returns a Future, that is when the Future
    // completes.
    call->on_ended(std::move(next));
    call->run();
  });
  if (number == 0) return;
  turn_waits_.add(call, strand);
  wait_for_turn(call, strand, number, "on a serial object");
}

// The turn may be far away, because the running call may take any time, or wait for a Future. So a timer
// answers the call before its deadline. The call leaves the strand when it ends, and its request with it: the
// strand decides whether the turn or the end of the call comes first.
// Everything here refers weakly to the call and to the strand, so that neither a timer nor the call itself
// keeps them.
void Server::wait_for_turn(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand,
                           uint64_t number, absl::string_view place) {
  const std::weak_ptr<ServedCall> weak = call;
  call->wait_at(CallState::kQueued, [this, weak, weak_strand = std::weak_ptr<Strand>(strand),
                                     number](const absl::Status& reason) {
    const std::shared_ptr<Strand> queue = weak_strand.lock();
    const Executor::Task task = queue == nullptr ? nullptr : queue->remove(number);
    const std::shared_ptr<ServedCall> waiting = weak.lock();
    if (task == nullptr || waiting == nullptr) return;
    waiting->turn_wait().end(*runtime_.timers);
    waiting->fail(reason);
  });
  if (call->incoming().deadline == absl::InfiniteFuture()) return;
  const absl::Time until = answer_by(runtime_.timers->clock().now(), call->incoming().deadline);
  const uint64_t timer =
      runtime_.timers->schedule(until, [weak, weak_strand = std::weak_ptr<Strand>(strand), place] {
        const std::shared_ptr<ServedCall> waiting = weak.lock();
        if (waiting == nullptr) return;
        const std::shared_ptr<Strand> queue = weak_strand.lock();
        // Only serial objects have a holder.
        const auto running =
            std::static_pointer_cast<const ServedCall>(queue == nullptr ? nullptr : queue->holder());
        waiting->end_wait(absl::DeadlineExceededError(absl::StrCat(
            "\"", waiting->callee(), "\" expired while it waited for its turn ", place,
            running == nullptr ? ""
                               : absl::StrCat(": \"", running->callee(), "\", called by worker \"",
                                              running->incoming().from.name, "\", is still running"))));
      });
  call->turn_wait().set_timer(timer, *runtime_.timers);
}

// The part of the server that answers service calls, which are messages of the framework itself.

// The answer to one service call. It is sent once, whatever the extension does: with Internal if the
// extension drops the call.
class Server::ServiceAnswer : public std::enable_shared_from_this<ServiceAnswer> {
 public:
  // How the call was entered.
  struct Entry {
    // The size that begin_service() has counted.
    uint64_t bytes = 0;
    bool counted = false;
    // Its record in the agent's CallRecorder.
    uint64_t record = 0;
  };
  ServiceAnswer(Server& server, std::shared_ptr<Agent> agent, const Worker& from, std::shared_ptr<Link> link,
                uint64_t call_id, const Entry& entry)
      : server_(server),
        agent_(std::move(agent)),
        from_(from),
        link_(std::move(link)),
        call_id_(call_id),
        entry_(entry) {}
  const std::shared_ptr<Agent>& agent() const { return agent_; }
  // Ends the service without an answer, because the link ends.
  void drop() {
    if (!sent_.exchange(true)) end();
  }
  // Also the end of a service whose task the executor has refused because of a shutdown.
  ~ServiceAnswer() {
    if (!sent_.load())
      send(describe_error([] { return absl::InternalError("the service dropped its call"); }));
  }

  void send(absl::StatusOr<ServiceReply> reply) noexcept {
    if (sent_.exchange(true)) return;
    try {
      if (send_reply(std::move(reply))) end();
      return;
    } catch (...) {
      refuse_or_cut(caught("the answer of a service"));
    }
    end();
  }

 private:
  // Returns false if the answer is sent later. After an exception nothing was sent.
  bool send_reply(absl::StatusOr<ServiceReply> reply) {
    EnvelopeBox out;
    proto::Response& response = *out->mutable_response();
    response.set_call_id(call_id_);
    EncodedTensors encoded;
    encoded.executor = server_.runtime_.executor;
    if (reply.ok()) {
      response.set_body(std::move(reply->body));
      if (reply->tensors != nullptr) {
        DeviceRoute route = server_.runtime_.devices.route_to(from_, nullptr);
        route.is_answer = true;
        route.destinations = std::move(reply->destinations);
        absl::Status status = tensor_backend()->encode(*reply->tensors, TensorSharing::kCapture, &route,
                                                       *response.mutable_result(), encoded);
        if (!status.ok()) reply = status;
      }
    }
    if (!reply.ok()) refuse(reply.status(), response, encoded);
    server_.runtime_.recorder->ended(entry_.record, Clock::system().now(), reply.status().code());
    if (encoded.copies != nullptr) {
      send_when_copied(*out, std::move(encoded));
      return false;
    }
    // No thread waits for such an answer, so it need not wake the peer.
    if (reply.ok() && reply->deferrable && encoded.buffers.empty() && encoded.handed_over == nullptr) {
      link_->send_deferred(*out);
    } else {
      (void)link_->send_encoded(*out, std::move(encoded));
    }
    return true;
  }

  // Without memory for the error either, ends the link: the caller must not wait for an answer that does not
  // come.
  void refuse_or_cut(const absl::Status& error) noexcept {
    if (!run_contained("the error of a service", [&] { server_.refuse(*link_, call_id_, error); }))
      link_->cut(no_memory());
  }

  // After the send: a graceful shutdown closes the links when no service is running.
  void end() { server_.calls_.end_service(from_, entry_.bytes, entry_.counted); }

  void refuse(absl::Status status, proto::Response& response, EncodedTensors& encoded) {
    // The error may have come from the tensors, after the body was set.
    response.clear_body();
    response.clear_result();
    encoded = EncodedTensors();
    status = server_.runtime_.for_caller(from_, std::move(status));
    status_to_proto(with_worker(std::move(status), server_.runtime_.self.name), *response.mutable_status());
  }

  void send_when_copied(proto::Envelope& envelope, EncodedTensors encoded) {
    const EnvelopePtr out = make_envelope();
    (*out)->Swap(&envelope);
    SendAhead::start(
        server_.runtime_.fences, std::move(encoded), [link = link_] { return link; },
        [self = shared_from_this(), out](const absl::Status& copied, EncodedTensors tensors) {
          try {
            if (!copied.ok()) self->refuse(copied, *(*out)->mutable_response(), tensors);
            (void)self->link_->send_encoded(**out, std::move(tensors));
          } catch (...) {
            self->refuse_or_cut(caught("the answer of a service"));
          }
          self->end();
        });
  }

  Server& server_;
  // Keeps the server alive.
  const std::shared_ptr<Agent> agent_;
  const Worker from_;
  const std::shared_ptr<Link> link_;
  const uint64_t call_id_;
  const Entry entry_;
  std::atomic<bool> sent_{false};
};

// A worker may always give back what it holds, and ask whether this one is alive. Other messages about
// references say what the sender itself holds, or has lost.
absl::Status Server::check_service(AgentExtension* layer, const Worker& from, uint32_t number) {
  if (number == kForkAdd) return runtime_.policy->check_hold(from);
  if (number == kListCallees) return runtime_.policy->check_service(from, "callees");
  if (layer == nullptr || layer->gives_back(number)) return absl::OkStatus();
  return runtime_.policy->check_service(from, layer->name());
}

void Server::serve_service(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                           std::vector<transport::Buffer> buffers) {
  std::shared_ptr<Agent> agent = runtime_.agent.lock();
  if (agent == nullptr) return;
  const uint32_t number = (*envelope)->request().service().number();
  const uint64_t call_id = (*envelope)->request().call_id();
  AgentExtension* const layer = runtime_.extension_for(number);
  // A message about references, or one that gives something back, is not refused: it ends more than it takes.
  const bool counted = from.incarnation != runtime_.self.incarnation && !RRefService::serves(number) &&
                       (layer == nullptr || !layer->gives_back(number));
  if (!envelope->lost().ok()) {
    refuse(*link, call_id,
           with_context(envelope->lost(), absl::StrCat("receiving a message for service ", number)));
    return;
  }
  absl::Status refused = calls_.check_reader(from, *link);
  ServiceAnswer::Entry entry{.bytes = counted ? bytes_of(envelope, buffers) : 0, .counted = counted};
  if (refused.ok() || !counted) refused = calls_.begin_service(from, entry.bytes, counted);
  if (!refused.ok()) {
    // No answer is sent during shutdown. The Goodbye that follows ends the call at its sender.
    if (absl::IsResourceExhausted(refused)) refuse(*link, call_id, refused);
    return;
  }
  std::shared_ptr<ServiceAnswer> answer;
  try {
    entry.record = runtime_.recorder->begin(CallEvent::Kind::kServed, from.incarnation, call_id, {},
                                            absl::StrCat("service ", number), Clock::system().now());
    answer = std::make_shared<ServiceAnswer>(*this, std::move(agent), from, link, call_id, entry);
  } catch (...) {
    calls_.end_service(from, entry.bytes, entry.counted);
    throw;
  }
  try {
    serve_service(layer, from, std::move(envelope), std::move(buffers), answer);
  } catch (...) {
    // A message that was not handled ends the link, so that its sender sends it again if it may.
    answer->drop();
    throw;
  }
}

void Server::serve_service(AgentExtension* layer, const Worker& from, EnvelopePtr envelope,
                           std::vector<transport::Buffer> buffers, std::shared_ptr<ServiceAnswer> answer) {
  const uint32_t number = (*envelope)->request().service().number();
  if (number == kForkAdd) {
    if (absl::Status room = rrefs_.check_hold(from); !room.ok()) {
      answer->send(std::move(room));
      return;
    }
  }
  if (runtime_.policy != nullptr) {
    if (absl::Status allowed = check_service(layer, from, number); !allowed.ok()) {
      answer->send(std::move(allowed));
      return;
    }
  }
  if (const proto::Service& service = (*envelope)->request().service();
      RRefService::serves(service.number())) {
    // Messages about references are handled on this thread, in the order of arrival: all that have arrived
    // must have been handled when the end of the connection is handled.
    ServiceCall call;
    call.from = from;
    call.service = service.number();
    call.body = service.body();
    call.reply = [answer](absl::StatusOr<ServiceReply> reply) { answer->send(std::move(reply)); };
    rrefs_.serve(call);
    return;
  }
  if (layer != nullptr && layer->serves_on_arrival(number)) {
    read_service(layer, from, **envelope, std::move(buffers), std::move(answer));
    return;
  }
  Executor::Task task = [this, layer, agent = answer->agent(), from, envelope = std::move(envelope),
                         buffers = std::move(buffers), answer = std::move(answer)]() mutable {
    // The task holds the agent, so that the extension lives while it serves the call.
    CurrentAgent::Scope scope(agent);
    read_service(layer, from, **envelope, std::move(buffers), std::move(answer));
  };
  runtime_.executor->post_clean(task, service_cost_.of(0));
}

void Server::read_service(AgentExtension* layer, const Worker& from, const proto::Envelope& envelope,
                          std::vector<transport::Buffer> buffers, std::shared_ptr<ServiceAnswer> answer) {
  const proto::Request& request = envelope.request();
  ServiceCall call;
  call.from = from;
  call.service = request.service().number();
  call.body = request.service().body();
  call.deadline = deadline_of(request, Clock::system().now());
  call.reply = [answer = std::move(answer)](absl::StatusOr<ServiceReply> reply) {
    answer->send(std::move(reply));
  };
  // Tensors on devices are made on streams of the pool, which stay current while the layer serves the call.
  std::unique_ptr<StreamScope> streams;
  if (request.arguments().tensors_size() > 0) {
    if (tensor_backend() == nullptr) {
      call.reply(absl::InvalidArgumentError(
          absl::StrCat("worker \"", runtime_.self.name,
                       "\" cannot receive tensors: its program was linked without libtorch")));
      return;
    }
    AgentDevices::Arrived arrived;
    absl::Status decoded = runtime_.devices.decode(from, request.arguments(), std::move(buffers), arrived);
    if (!decoded.ok()) {
      call.reply(std::move(decoded));
      return;
    }
    streams = std::move(arrived.streams);
    call.tensors = std::move(arrived.tensors);
    call.sender_devices = sender_devices(request.arguments());
    call.fence = std::move(arrived.fence);
  }
  if (call.service == kPing) {
    call.reply(ServiceReply());
  } else if (call.service == kListCallees) {
    call.reply(serve_list_callees(call.body));
  } else if (layer != nullptr) {
    // kPing comes before this: connect_at_init and shutdown use it without any extension.
    layer->serve(std::move(call));
  } else {
    call.reply(absl::NotFoundError(
        absl::StrCat("service ", call.service, " is not linked into worker \"", runtime_.self.name, "\"")));
  }
}

}  // namespace gradwire::rpc
