#include "gradwire/rpc/caller/caller.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/agent_statistics.h"
#include "gradwire/rpc/call_context.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/rref/service.h"

// How a call gets its end. The thread that sends a call adds it to the table of pending calls first. After
// that the answer, the deadline, a cancellation, the end of the link, the loss of the worker, and shutdown
// compete for it. Each of them takes the call out of the table, which succeeds once, and then calls
// CallCompletion.
// caller_repeats.cc has the calls that are sent again on another connection, and caller_copies.cc those that
// wait for copies from a device. service_attempt.cc has the calls of the framework itself.
namespace gradwire::rpc {
namespace {

// If the send fails, the connection has ended. Then the callee cancels the call by itself, at its deadline if
// it is repeatable.
void send_cancel(Link& link, uint64_t call_id) {
  EnvelopeBox envelope;
  envelope->mutable_cancel()->set_call_id(call_id);
  (void)link.send(*envelope, {});
}

}  // namespace

Caller::Caller(AgentRuntime& runtime, Peers& peers, RRefService& rrefs)
    : runtime_(runtime),
      peers_(peers),
      rrefs_(rrefs),
      pending_(runtime.self.incarnation),
      completion_(runtime, peers, rrefs, pending_, request_ids_),
      copied_({.fences = runtime.fences,
               .self = [&runtime] { return std::weak_ptr<void>(runtime.agent); },
               .find_link = [this](const std::shared_ptr<Peer>& peer) -> std::shared_ptr<LinkSender> {
                 return link_to(peer).value_or(nullptr);
               },
               .send = [this](CopiedCall& call) { send_now(call); }}) {}

absl::StatusOr<std::shared_ptr<Peer>> Caller::find(const Destination& destination) const {
  if (destination.incarnation() == 0) return peers_.find(destination.name(), destination.id());
  return peers_.find(Worker{destination.name(), destination.id(), destination.incarnation()});
}

// A shutdown may begin after the check, and end_all() may miss the call. Then the call ends because its link
// is closed, or because sending on the closed link fails.
absl::StatusOr<std::shared_ptr<Link>> Caller::link_to(const std::shared_ptr<Peer>& peer) const {
  GRADWIRE_RETURN_IF_ERROR(runtime_.accepts_calls());
  return peers_.link_to(peer);
}

void Caller::add_pending(uint64_t id, PendingCalls::Taken call) {
  CallRecorder& recorder = *runtime_.recorder;
  call->record = recorder.begin(CallEvent::Kind::kMade, call->incarnation, id, call->parent, call->callee,
                                call->started);
  if (call->sent_at > call->started) recorder.started(call->record, call->sent_at);
  if (absl::Time alarm = pending_.add(id, std::move(call)); alarm != absl::InfiniteFuture()) {
    runtime_.timers->schedule(alarm, [this, alarm] { expire(alarm); });
  }
}

// The answer may arrive, and the connection may end, before Link::send() returns. So the order of the steps
// matters:
//   1. Get a link. Without one the call was never added to the table.
//   2. Add the call to the table. An answer that finds no call would be dropped as a late one.
//   3. Send the request, then report its references as sent. Before that report, a broken connection does not
//      affect them.
//   4. Copy the buffers that the caller may change when send() returns.
//   5. PendingCalls::sent(): handle a cancellation that came during the steps above.
void Caller::send(uint64_t id, proto::Envelope& envelope, EncodedTensors&& tensors, bool borrow,
                  PendingCalls::Taken call) {
  proto::Request& request = *envelope.mutable_request();
  request.set_call_id(id);
  calls_made_.fetch_add(1, std::memory_order_relaxed);
  call->borrows = borrow && any_borrowed(tensors.buffers);
  if (tensors.copies != nullptr || (request.order_key() != 0 && copied_.delays(call->incarnation, request))) {
    // The bytes must not depend on the caller any more, which may go on. The call waits in the table, without
    // a link.
    if (!borrow) own_bytes(tensors.buffers);
    auto waiting = std::make_shared<CopiedCall>();
    waiting->id = id;
    waiting->envelope.Swap(&envelope);
    waiting->tensors = std::move(tensors);
    waiting->borrow = borrow;
    waiting->peer = call->peer;
    waiting->deadline = call->deadline;
    call->copying = true;
    call->sending = false;
    add_pending(id, std::move(call));
    copied_.add(waiting);
    return;
  }
  request.set_timeout_us(timeout_us(call->deadline, call->sent_at));
  const std::shared_ptr<Peer> peer = call->peer;
  absl::StatusOr<std::shared_ptr<Link>> link = link_to(peer);
  if (!link.ok()) {
    pending_.refused();
    rrefs_.undo(request.arguments(), peer->worker);
    completion_.complete(std::move(call), with_worker(link.status(), peer->worker.name));
    return;
  }
  call->link = *link;
  add_pending(id, std::move(call));
  transmit(id, *link, peer->worker, envelope, std::move(tensors), borrow);
}

void Caller::transmit(uint64_t id, const std::shared_ptr<Link>& link, const Worker& to,
                      proto::Envelope& envelope, EncodedTensors&& tensors, bool borrow) {
  const proto::Payload& arguments = envelope.request().arguments();
  const bool borrows = any_borrowed(tensors.buffers);
  absl::StatusOr<uint64_t> ticket = link->send_encoded(envelope, std::move(tensors));
  if (ticket.ok()) rrefs_.sent(arguments, to, [&] { return link->closed(); });
  if (ticket.ok() && borrows && !borrow) link->capture(*ticket);
  if (!ticket.ok()) {
    // The message never left. If the end of the link has taken the call already, that thread completes it.
    rrefs_.undo(arguments, to);
    if (PendingCalls::Taken taken = pending_.take(id)) {
      const std::string text =
          absl::StrCat("sending to worker \"", to.name, "\": ", ticket.status().message());
      completion_.fail(std::move(taken), absl::Status(ticket.status().code(), text));
    }
    return;
  }
  if (PendingCalls::Taken given_up = pending_.sent(id, *ticket)) {
    absl::Status reason = given_up->given_up;
    retract(id, std::move(given_up), std::move(reason));
  } else if (borrow && borrows && !pending_.contains(id)) {
    // The call ended before its ticket was stored, so complete() could not capture it. Capture it here.
    link->capture(*ticket);
  }
}

void Caller::retract(uint64_t id, PendingCalls::Taken call, absl::Status reason) {
  // A Cancel follows its request on the same link, so it cannot arrive first.
  if (call->link != nullptr) {
    send_cancel(*call->link, id);
  } else if (!call->copying) {
    // The call is between two attempts, and an earlier attempt may be running at the callee.
    runtime_.executor->post_clean([this, peer = call->peer, id] {
      // If no link can be made, no Cancel is needed: the callee ends the call at its deadline at the latest.
      if (absl::StatusOr<std::shared_ptr<Link>> link = peers_.link_to(peer); link.ok())
        send_cancel(**link, id);
    });
  }
  completion_.complete(std::move(call), std::move(reason));
}

void Caller::cancel(uint64_t id, absl::Status reason) {
  if (PendingCalls::Taken call = pending_.give_up(id, reason))
    retract(id, std::move(call), std::move(reason));
}

void Caller::expire(absl::Time alarm) {
  // Schedule the next alarm first: completing calls runs code of the user, which may take long.
  PendingCalls::Expired expired = pending_.take_expired(alarm, Clock::system().now());
  if (expired.next != absl::InfiniteFuture()) {
    runtime_.timers->schedule(expired.next, [this, next = expired.next] { expire(next); });
  }
  absl::Status error;
  for (auto& [id, call] : expired.calls) {
    const std::string& name = call->peer->worker.name;
    absl::Status reason = with_worker(absl::DeadlineExceededError(absl::StrCat(
                                          "\"", call->callee, "\" on worker \"", name,
                                          "\" did not answer within ", absl::FormatDuration(call->timeout))),
                                      name);
    error = reason;
    retract(id, std::move(call), std::move(reason));
  }
  if (!error.ok() && runtime_.on_timeout) runtime_.on_timeout(error);
}

void Caller::answer(const Worker& from, EnvelopePtr envelope, std::vector<transport::Buffer> buffers) {
  const proto::Response& response = (*envelope)->response();
  // The table checks who answers: a worker that guesses a call id cannot end the call of another worker.
  PendingCalls::Taken call = pending_.take_from(response.call_id(), from.incarnation);
  if (call == nullptr) {
    late_answers_.fetch_add(1, std::memory_order_relaxed);
    // Receiving the references and dropping the handles gives them back.
    (void)rrefs_.receive(response.result(), from);
    return;
  }
  if (response.has_status()) {
    absl::Status status = status_from_proto(response.status());
    if (!status.ok()) {
      completion_.complete(std::move(call), with_worker(std::move(status), from.name));
      return;
    }
  }
  completion_.complete(std::move(call), Answer{std::move(envelope), std::move(buffers)});
}

void Caller::link_closed(const Worker& peer, const Link& link, const absl::Status& reason) {
  // It is unknown whether the callee has run. So a call that is not repeatable fails with Unavailable, and
  // the program decides. A repeatable call begins its next attempt.
  PendingCalls::Broken broken = pending_.take_link(link);
  for (PendingCalls::Taken& call : broken.calls) {
    const std::string text = absl::StrCat("lost the connection to worker \"", peer.name,
                                          "\" during the call of \"", call->callee, "\": ", reason.message());
    completion_.fail(std::move(call), absl::UnavailableError(text));
  }
  for (const uint64_t id : broken.repeatable) attempt_failed(id, absl::UnavailableError(reason.message()));
}

void Caller::worker_lost(const Worker& peer, const absl::Status& reason) {
  // This includes repeatable calls between two attempts: a loss is final, so no later attempt can succeed.
  for (PendingCalls::Taken& call : pending_.take_worker(peer.incarnation)) {
    completion_.fail(std::move(call), reason);
  }
}

void Caller::end_all(const absl::Status& reason) {
  for (PendingCalls::Taken& call : pending_.take_all()) completion_.complete(std::move(call), reason);
}

void Caller::count(AgentStatistics& statistics) const {
  completion_.count(statistics);
  statistics.calls_made = calls_made_.load();
  statistics.calls_repeated = calls_repeated_.load();
  statistics.late_answers = late_answers_.load();
}

void Caller::count(AgentTables& tables) const {
  tables.pending_calls = pending_.size();
  tables.open_requests = request_ids_.size();
}

bool sends_at_once(const Caller& caller, const Worker& to, uint64_t bytes) {
  const AgentRuntime& runtime = caller.runtime();
  if (to == runtime.self) return false;
  const absl::StatusOr<std::shared_ptr<Peer>> peer = caller.find(Destination::incarnation_of(to));
  if (!peer.ok()) return false;
  const absl::StatusOr<std::shared_ptr<Link>> link = (*peer)->link();
  if (!link.ok() || *link == nullptr) return false;
  const FlowWindow::Usage usage = (*peer)->flow.usage();
  const FlowWindow::Bounds bounds(runtime.options.flow);
  return !usage.awaited && usage.calls < bounds.calls / 2 && usage.bytes + bytes <= bounds.bytes / 2;
}

}  // namespace gradwire::rpc
