#include "gradwire/rpc/caller/caller.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/agent_statistics.h"
#include "gradwire/rpc/call_context.h"
#include "gradwire/rpc/caller/flow_wait.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {
namespace {

bool any_requires_grad(const proto::Payload& payload) {
  return std::any_of(payload.tensors().begin(), payload.tensors().end(),
                     [](const proto::Tensor& tensor) { return tensor.requires_grad(); });
}

// Decodes the answer to a call.
absl::StatusOr<IncomingPayload> unpack(PendingCall& call, Answer answer, RRefService& rrefs,
                                       GraphHook* hook) {
  IncomingPayload in;
  in.payload = {answer.envelope, &answer.response().result()};
  auto received = rrefs.receive(*in.payload, call.peer->worker);
  // Only now: a reference that came back to its sender must not have gone meanwhile.
  call.references.clear();
  if (!received.ok()) return received.status();
  in.references = *std::move(received);
  if (in.payload->tensors_size() > 0) {
    if (tensor_backend() == nullptr) {
      return absl::InvalidArgumentError(
          "the answer holds a tensor, but this program was linked without libtorch");
    }
    GRADWIRE_ASSIGN_OR_RETURN(in.tensors, tensor_backend()->decode(*in.payload, std::move(answer.buffers)));
  }
  const bool concerns_graph = in.payload->has_graph() || any_requires_grad(*in.payload);
  if (concerns_graph && hook != nullptr) {
    GRADWIRE_RETURN_IF_ERROR(hook->incoming_answer(call.peer->worker, in.tensors.get(), *in.payload));
  }
  return in;
}

void send_cancel(Link& link, uint64_t call_id) {
  EnvelopeBox envelope;
  envelope->mutable_cancel()->set_call_id(call_id);
  (void)link.send(*envelope, {});
}

}  // namespace

Caller::Caller(AgentRuntime& runtime, Peers& peers, RRefService& rrefs)
    : runtime_(runtime), peers_(peers), rrefs_(rrefs), flow_bounds_(runtime.options.flow) {}

absl::StatusOr<std::shared_ptr<Peer>> Caller::find(const Destination& destination) const {
  if (destination.incarnation() == 0) return peers_.find(destination.name(), destination.id());
  return peers_.find(Worker{destination.name(), destination.id(), destination.incarnation()});
}

absl::Time Caller::deadline(const std::optional<absl::Duration>& timeout, absl::Time now) const {
  absl::Time deadline = now + timeout.value_or(runtime_.options.rpc_timeout);
  // A call made by a handler ends no later than the call that the handler serves.
  if (auto serving = CallContext::current()) deadline = std::min(deadline, serving->deadline());
  return deadline;
}

absl::StatusOr<FlowCredit> Caller::enter_window(PendingCall& call, uint64_t bytes) {
  FlowCredit credit = call.peer->flow.try_enter(bytes, flow_bounds_);
  if (credit) return credit;
  absl::StatusOr<FlowCredit> waited =
      enter_full_window(call.peer->flow, runtime_.options.flow,
                        {call.callee, call.peer->worker.name, bytes, call.deadline, call.timeout},
                        runtime_.executor, *runtime_.timers);
  call.leaves = Clock::system().now();
  return waited;
}

absl::StatusOr<std::shared_ptr<Link>> Caller::link_to(const std::shared_ptr<Peer>& peer) const {
  GRADWIRE_RETURN_IF_ERROR(runtime_.accepts_calls());
  return peers_.link_to(peer);
}

void Caller::add_pending(uint64_t id, PendingCalls::Taken call) {
  if (absl::Time alarm = pending_.add(id, std::move(call)); alarm != absl::InfiniteFuture()) {
    runtime_.timers->schedule(alarm, [this, alarm] { expire(alarm); });
  }
}

void Caller::send(uint64_t id, proto::Envelope& envelope, std::vector<transport::Buffer> buffers, bool borrow,
                  PendingCalls::Taken call) {
  proto::Request& request = *envelope.mutable_request();
  request.set_call_id(id);
  request.set_timeout_us(timeout_us(call->deadline, call->leaves));
  calls_made_.fetch_add(1, std::memory_order_relaxed);
  const bool borrows = any_borrowed(buffers);
  call->borrows = borrow && borrows;
  const std::shared_ptr<Peer> peer = call->peer;
  absl::StatusOr<std::shared_ptr<Link>> link = link_to(peer);
  if (!link.ok()) {
    pending_.refused();
    rrefs_.undo(request.arguments(), peer->worker);
    complete(std::move(call), with_worker(link.status(), peer->worker.name));
    return;
  }
  call->link = *link;
  add_pending(id, std::move(call));
  absl::StatusOr<uint64_t> ticket = (*link)->send(envelope, std::move(buffers));
  if (ticket.ok()) rrefs_.sent(request.arguments(), peer->worker, (*link)->closed());
  if (ticket.ok() && borrows && !borrow) (*link)->capture(*ticket);
  if (!ticket.ok()) {
    rrefs_.undo(request.arguments(), peer->worker);
    if (PendingCalls::Taken taken = pending_.take(id)) {
      const std::string text =
          absl::StrCat("sending to worker \"", peer->worker.name, "\": ", ticket.status().message());
      complete(std::move(taken), with_worker(absl::Status(ticket.status().code(), text), peer->worker.name));
    }
    return;
  }
  if (PendingCalls::Taken given_up = pending_.sent(id, *ticket)) {
    absl::Status reason = given_up->given_up;
    retract(id, std::move(given_up), std::move(reason));
  } else if (borrow && borrows && !pending_.contains(id)) {
    // It ended before it could be known what there was to capture.
    (*link)->capture(*ticket);
  }
}

void Caller::complete(PendingCalls::Taken call, absl::StatusOr<Answer> answer) {
  // Copy borrowed buffers before completing the call: the caller may modify its tensors afterwards.
  if (call->borrows && call->link != nullptr) call->link->capture(call->ticket);
  // Before that too, so that the caller's next call finds the place free.
  call->credit.give_back();
  if (call->repeatable != nullptr) request_ids_.end(call->incarnation, call->repeatable->id);
  if (answer.ok()) {
    latencies_.record(Clock::system().now() - call->started);
  } else {
    calls_failed_.fetch_add(1, std::memory_order_relaxed);
  }
  if (call->answered) {
    call->answered(std::move(answer));
  } else if (answer.ok()) {
    call->done(unpack(*call, *std::move(answer), rrefs_, runtime_.graph_hook));
  } else {
    call->references.clear();
    call->done(answer.status());
  }
  call = nullptr;
  pending_.finished();
}

void Caller::retract(uint64_t id, PendingCalls::Taken call, absl::Status reason) {
  if (call->link != nullptr) {
    send_cancel(*call->link, id);
  } else {
    // It is between two attempts, and the one before may be running there.
    runtime_.executor->post_clean([this, peer = call->peer, id] {
      // A lost worker has cancelled it; and one that cannot be reached keeps it no longer than its deadline.
      if (absl::StatusOr<std::shared_ptr<Link>> link = peers_.link_to(peer); link.ok())
        send_cancel(**link, id);
    });
  }
  complete(std::move(call), std::move(reason));
}

void Caller::cancel(uint64_t id, absl::Status reason) {
  if (PendingCalls::Taken call = pending_.give_up(id, reason))
    retract(id, std::move(call), std::move(reason));
}

void Caller::expire(absl::Time alarm) {
  PendingCalls::Expired expired = pending_.take_expired(alarm, Clock::system().now());
  if (expired.next != absl::InfiniteFuture()) {
    runtime_.timers->schedule(expired.next, [this, next = expired.next] { expire(next); });
  }
  for (auto& [id, call] : expired.calls) {
    const std::string& name = call->peer->worker.name;
    absl::Status reason = with_worker(absl::DeadlineExceededError(absl::StrCat(
                                          "\"", call->callee, "\" on worker \"", name,
                                          "\" gave no answer within ", absl::FormatDuration(call->timeout))),
                                      name);
    retract(id, std::move(call), std::move(reason));
  }
}

void Caller::answer(const Worker& from, EnvelopePtr envelope, std::vector<transport::Buffer> buffers) {
  const proto::Response& response = (*envelope)->response();
  PendingCalls::Taken call = pending_.take_from(response.call_id(), from.incarnation);
  if (call == nullptr) {
    late_answers_.fetch_add(1, std::memory_order_relaxed);
    // Taking the references and dropping them gives them back.
    (void)rrefs_.receive(response.result(), from);
    return;
  }
  if (response.has_status()) {
    absl::Status status = status_from_proto(response.status());
    if (!status.ok()) {
      complete(std::move(call), with_worker(std::move(status), from.name));
      return;
    }
  }
  complete(std::move(call), Answer{std::move(envelope), std::move(buffers)});
}

void Caller::link_closed(const Worker& peer, const Link& link, const absl::Status& reason) {
  PendingCalls::Broken broken = pending_.take_link(link);
  for (PendingCalls::Taken& call : broken.calls) {
    const std::string text =
        absl::StrCat("worker \"", peer.name, "\" could not be reached, or went away, while \"", call->callee,
                     "\" was under way: ", reason.message());
    complete(std::move(call), with_worker(absl::UnavailableError(text), peer.name));
  }
  for (const uint64_t id : broken.repeatable) interrupted(id, absl::UnavailableError(reason.message()));
}

void Caller::worker_lost(const Worker& peer, const absl::Status& reason) {
  for (PendingCalls::Taken& call : pending_.take_worker(peer.incarnation)) {
    const std::string text = absl::StrCat("\"", call->callee, "\" was under way: ", reason.message());
    complete(std::move(call), with_worker(absl::Status(reason.code(), text), peer.name));
  }
}

void Caller::end_all(const absl::Status& reason) {
  for (PendingCalls::Taken& call : pending_.take_all()) complete(std::move(call), reason);
}

void Caller::count(AgentStatistics& statistics) const {
  statistics.calls_made = calls_made();
  statistics.calls_failed = calls_failed_.load();
  statistics.calls_repeated = calls_repeated_.load();
  statistics.call_p50 = latencies_.quantile(0.5);
  statistics.call_p99 = latencies_.quantile(0.99);
  statistics.late_answers = late_answers_.load();
}

void Caller::count(AgentTables& tables) const {
  tables.pending_calls = pending_.size();
  tables.open_requests = request_ids_.size();
}

}  // namespace gradwire::rpc
