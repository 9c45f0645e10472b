#include "gradwire/rpc/caller/caller.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/metrics/peer_calls.h"
#include "gradwire/rpc/rref/service.h"

// How a call gets its end. The thread that sends a call adds it to the table of pending calls first. After
// that the answer, the deadline, a cancellation, the end of the link, the loss of the worker, and shutdown
// compete for it. Each of them takes the call out of the table, which succeeds once, and then calls
// Caller::complete().
// service_attempt.cc has the calls of the framework itself.
namespace gradwire::rpc {
namespace {

// If the send fails, the connection has ended. Then the callee cancels the call by itself, at its deadline if
// it is repeatable.
void send_cancel(Link& link, uint64_t call_id) {
  EnvelopeBox envelope;
  envelope->mutable_cancel()->set_call_id(call_id);
  (void)link.send(*envelope, {});
}

bool any_requires_grad(const proto::Payload& payload) {
  return std::any_of(payload.tensors().begin(), payload.tensors().end(),
                     [](const proto::Tensor& tensor) { return tensor.requires_grad(); });
}

// Decodes the answer to a call.
absl::StatusOr<IncomingPayload> unpack(PendingCall& call, Answer&& answer, RRefService& rrefs,
                                       const AgentDevices& devices, GraphHook* hook) {
  // The steps, in this order:
  //   1. Receive the references, also if the rest fails: the sender waits until each of them is confirmed or
  //      deleted.
  //   2. Decode the tensors.
  //   3. Pass the tensors to the autograd graph. A tensor that requires grad concerns it even if the answer
  //      has no graph (GraphHook::incoming_answer).
  IncomingPayload in;
  // Its streams stay current while the graph hook makes nodes.
  AgentDevices::Arrived arrived;
  in.payload = {answer.envelope, &answer.response().result()};
  auto received = rrefs.receive(*in.payload, call.peer->worker);
  // Release the request's references only after the answer's are received: the answer may return one of them,
  // which must stay alive until then.
  call.references.clear();
  if (!received.ok()) return received.status();
  in.references = *std::move(received);
  if (in.payload->tensors_size() > 0) {
    if (tensor_backend() == nullptr) {
      return absl::InvalidArgumentError(
          "cannot decode the answer: it holds a tensor, but this program was linked without libtorch");
    }
    // The user's streams wait for tensors on devices when the user takes the result.
    GRADWIRE_RETURN_IF_ERROR(
        devices.decode(call.peer->worker, *in.payload, std::move(answer.buffers), arrived));
    in.tensors = std::move(arrived.tensors);
    in.fence = std::move(arrived.fence);
  }
  const bool concerns_graph = in.payload->has_graph() || any_requires_grad(*in.payload);
  if (concerns_graph && hook != nullptr) {
    GRADWIRE_RETURN_IF_ERROR(hook->incoming_answer(call.peer->worker, in.tensors.get(), *in.payload));
  }
  return in;
}

}  // namespace

Caller::Caller(AgentRuntime& runtime, Peers& peers, RRefService& rrefs)
    : runtime_(runtime),
      peers_(peers),
      rrefs_(rrefs),
      pending_(runtime.self.incarnation),
      copied_({.fences = runtime.fences,
               .self = [&runtime] { return std::weak_ptr<void>(runtime.agent); },
               .find_link = [this](const std::shared_ptr<Peer>& peer) -> std::shared_ptr<LinkSender> {
                 return link_to(peer).value_or(nullptr);
               },
               .send = [this](CopiedCall& call) { run_steps(call.id, [&] { send_now(call); }); }}) {}

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

void Caller::add_pending(uint64_t id, PendingCalls::Taken call, absl::FunctionRef<void()> steps) {
  CallRecorder& recorder = *runtime_.recorder;
  call->record = recorder.begin(CallEvent::Kind::kMade, call->incarnation, id, call->parent, call->callee,
                                call->started);
  if (call->sent_at > call->started) recorder.started(call->record, call->sent_at);
  const absl::Time alarm = pending_.add(id, std::move(call));
  run_steps(id, [&] {
    set_alarm(alarm);
    steps();
  });
}

void Caller::run_steps(uint64_t id, absl::FunctionRef<void()> steps) noexcept {
  try {
    steps();
  } catch (...) {
    absl::Status error = caught("sending a call");
    // The request may have left.
    if (PendingCalls::Taken taken = pending_.take(id)) retract(id, std::move(taken), std::move(error));
  }
}

void Caller::set_alarm(absl::Time alarm) {
  if (alarm == absl::InfiniteFuture()) return;
  absl::Cleanup lost = [&] { pending_.lose_alarm(alarm); };
  runtime_.timers->schedule(alarm, [this, alarm] { expire(alarm); });
  std::move(lost).Cancel();
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
    waiting->borrow = borrow;
    waiting->peer = call->peer;
    waiting->deadline = call->deadline;
    call->copying = true;
    call->sending = false;
    add_pending(id, std::move(call), [&] {
      waiting->envelope->Swap(&envelope);
      waiting->tensors = std::move(tensors);
      copied_.add(waiting);
    });
    return;
  }
  request.set_timeout_us(timeout_us(call->deadline, call->sent_at));
  const std::shared_ptr<Peer> peer = call->peer;
  absl::StatusOr<std::shared_ptr<Link>> link = link_to(peer);
  if (!link.ok()) {
    pending_.refused();
    rrefs_.undo(request.arguments(), peer->worker);
    complete(std::move(call), with_worker(link.status(), peer->worker.name));
    return;
  }
  call->link = *link;
  add_pending(id, std::move(call),
              [&] { transmit(id, *link, peer->worker, envelope, std::move(tensors), borrow); });
}

void Caller::transmit(uint64_t id, const std::shared_ptr<Link>& link, const Worker& to,
                      proto::Envelope& envelope, EncodedTensors&& tensors, bool borrow) {
  const proto::Payload& arguments = envelope.request().arguments();
  const bool borrows = any_borrowed(tensors.buffers);
  const absl::StatusOr<uint64_t> ticket = [&]() -> absl::StatusOr<uint64_t> {
    try {
      return link->send_encoded(envelope, std::move(tensors));
    } catch (...) {
      return status_from_exception(std::current_exception());
    }
  }();
  if (ticket.ok()) rrefs_.sent(arguments, to, [&] { return link->closed(); });
  if (ticket.ok() && borrows && !borrow) link->capture(*ticket);
  if (!ticket.ok()) {
    // The message never left. If the end of the link has taken the call already, that thread completes it.
    rrefs_.undo(arguments, to);
    if (PendingCalls::Taken taken = pending_.take(id)) {
      fail(std::move(taken), describe_error([&] {
             return with_context(ticket.status(), absl::StrCat("sending to worker \"", to.name, "\""));
           }));
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

void Caller::retract(uint64_t id, PendingCalls::Taken call, absl::Status reason) noexcept {
  // Without a Cancel the callee ends the call at its deadline at the latest.
  run_contained("the cancellation of a call", [&] {
    // A Cancel follows its request on the same link, so it cannot arrive first.
    if (call->link != nullptr) {
      send_cancel(*call->link, id);
    } else if (!call->copying) {
      // The call is between two attempts, and an earlier attempt may be running at the callee.
      runtime_.executor->post_clean([this, peer = call->peer, id] {
        if (absl::StatusOr<std::shared_ptr<Link>> link = peers_.link_to(peer); link.ok())
          send_cancel(**link, id);
      });
    }
  });
  complete(std::move(call), std::move(reason));
}

void Caller::cancel(uint64_t id, absl::Status reason) {
  if (PendingCalls::Taken call = pending_.give_up(id, reason))
    retract(id, std::move(call), std::move(reason));
}

void Caller::expire(absl::Time alarm) {
  PendingCalls::Expired expired = pending_.take_expired(alarm, Clock::system().now());
  // The next alarm comes first, because completing calls may take long.
  std::exception_ptr no_alarm;
  try {
    set_alarm(expired.next);
  } catch (...) {
    no_alarm = std::current_exception();
  }
  // These have left the table.
  end_expired(expired.calls);
  // Then this timer runs again.
  if (no_alarm != nullptr) std::rethrow_exception(no_alarm);
}

void Caller::end_expired(PendingCalls::Expired::Calls& calls) noexcept {
  absl::Status error;
  absl::Duration longest;
  for (auto& [id, call] : calls) {
    absl::Status reason = describe_error([&, &call = call] {
      const std::string& name = call->peer->worker.name;
      return with_worker(absl::DeadlineExceededError(absl::StrCat("\"", call->callee, "\" on worker \"", name,
                                                                  "\" did not answer within ",
                                                                  absl::FormatDuration(call->timeout))),
                         name);
    });
    if (error.ok() || call->timeout > longest) {
      error = reason;
      longest = call->timeout;
    }
    retract(id, std::move(call), std::move(reason));
  }
  if (error.ok() || !runtime_.on_timeout) return;
  run_contained("what follows a timeout", [&] { runtime_.on_timeout(error, longest); });
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
      complete(std::move(call), with_worker(std::move(status), from.name));
      return;
    }
  }
  if (!envelope->lost().ok()) {
    // Receiving the references and dropping the handles gives them back.
    (void)rrefs_.receive(response.result(), from);
    complete(std::move(call), with_context(envelope->lost(), absl::StrCat("receiving the answer of worker \"",
                                                                          from.name, "\"")));
    return;
  }
  complete(std::move(call), Answer{std::move(envelope), std::move(buffers)});
}

void Caller::link_closed(const Worker& peer, const Link& link, const absl::Status& reason) {
  // It is unknown whether the callee has run. So a call that is not repeatable fails with Unavailable, and
  // the program decides. A repeatable call begins its next attempt.
  PendingCalls::Broken broken = pending_.take_link(link);
  // The peer has not introduced itself if the connection was not established. The reason says why.
  const char* const happened = link.introduced() ? "lost the connection" : "connecting";
  for (PendingCalls::Taken& call : broken.calls) {
    absl::Status failure = describe_error([&] {
      return absl::UnavailableError(absl::StrCat(happened, " to worker \"", peer.name,
                                                 "\" during the call of \"", call->callee,
                                                 "\": ", reason.message()));
    });
    fail(std::move(call), std::move(failure));
  }
  for (const uint64_t id : broken.repeatable)
    run_steps(id, [&] { attempt_failed(id, absl::UnavailableError(reason.message())); });
}

void Caller::worker_lost(const Worker& peer, const absl::Status& reason) {
  // This includes repeatable calls between two attempts: a loss is final, so no later attempt can succeed.
  for (PendingCalls::Taken& call : pending_.take_worker(peer.incarnation)) {
    fail(std::move(call), reason);
  }
}

void Caller::end_all(const absl::Status& reason) {
  for (PendingCalls::Taken& call : pending_.take_all()) complete(std::move(call), reason);
}

absl::Status Caller::may_reach(const Worker& worker) const {
  GRADWIRE_RETURN_IF_ERROR(runtime_.accepts_calls());
  return peers_.status(worker);
}

// The end of this agent or of the other worker closes links before it ends calls. A thread that finds a link
// closed in between must not report the closed link: every later call fails with the reason of that end.
void Caller::fail(PendingCalls::Taken call, absl::Status failure) noexcept {
  absl::Status reason = describe_error([&] {
    const Worker& callee = call->peer->worker;
    if (absl::Status closed = runtime_.accepts_calls(); !closed.ok()) return closed;
    if (const absl::Status lost = peers_.status(callee); !lost.ok()) {
      failure =
          absl::Status(lost.code(), absl::StrCat("call of \"", call->callee, "\" failed: ", lost.message()));
    }
    return with_worker(failure, callee.name);
  });
  complete(std::move(call), std::move(reason));
}

void Caller::count_end(const PendingCall& call, absl::StatusCode code) {
  if (code != absl::StatusCode::kOk) calls_failed_.fetch_add(1, std::memory_order_relaxed);
  const absl::Time now = Clock::system().now();
  const int64_t took_ns = absl::ToUnixNanos(now) - absl::ToUnixNanos(call.started);
  if (code == absl::StatusCode::kOk) latencies_.record_ns(took_ns);
  runtime_.recorder->ended(call.record, now, code);
  if (runtime_.call_metrics == nullptr) return;
  Peer& peer = *call.peer;
  peer.made_metrics.in(*runtime_.call_metrics, peer.worker.name).made(call.callee, code, took_ns);
}

void Caller::complete(PendingCalls::Taken call, absl::StatusOr<Answer> answer) noexcept {
  // Give the credit back before completing, so that the caller's next call finds room in the window.
  // This may admit a call that waits for room, on this thread.
  call->credit.give_back();
  // The next request to this worker may say that this answer is not needed any more.
  if (call->repeatable != nullptr) request_ids_.end(call->incarnation, call->repeatable->id);
  run_contained("counting a call", [&] { count_end(*call, answer.status().code()); });
  // A graceful shutdown waits for the call, also if handling the answer throws.
  absl::Cleanup finished = [this] { pending_.finished(); };
  if (call->answered) {
    run_contained("the answer to a message of the framework", [&] { call->answered(std::move(answer)); });
    // Destroy the call while it still counts as unfinished. Its last handles may send messages about
    // references. A graceful shutdown must see the call or these messages.
    call = nullptr;
    return;
  }
  ProfiledCall::Events events;
  absl::StatusOr<IncomingPayload> result = [&]() noexcept -> absl::StatusOr<IncomingPayload> {
    try {
      if (call->profile != nullptr && answer.ok()) events = answer->response().events();
      // Observers are code of the program, and capturing may wait for a thread that sends.
      call->borrows = call->borrows && call->link != nullptr && call->link->borrows(call->ticket);
      if (!answer.ok()) return answer.status();
      return unpack(*call, *std::move(answer), rrefs_, runtime_.devices, runtime_.graph_hook);
    } catch (...) {
      return caught("receiving an answer");
    }
  }();
  if (!answer.ok()) call->references.clear();
  if (call->profile == nullptr && !call->borrows) {
    finish(std::move(call), std::move(result), events);
    return;
  }
  runtime_.executor->run_off_duty(
      [this, finished = std::move(finished), call = std::move(call), result = std::move(result),
       events = std::move(events)]() mutable { finish(std::move(call), std::move(result), events); });
}

void Caller::finish(PendingCalls::Taken call, absl::StatusOr<IncomingPayload>&& result,
                    const ProfiledCall::Events& events) noexcept {
  try {
    // Copy borrowed buffers before completing the call: the caller may modify its tensors afterwards.
    if (call->borrows) call->link->capture(call->ticket);
    if (call->profile != nullptr) {
      call->profile->end(events);
      call->profile = nullptr;
    }
  } catch (...) {
    result = caught("the end of a call");
  }
  try {
    call->done(std::move(result));
  } catch (...) {
    absl::Status error = caught("receiving an answer");
    run_contained("the end of a call", [&] { call->done(std::move(error)); });
  }
  // As in complete().
  call = nullptr;
}

void Caller::count(AgentStatistics& statistics) const {
  statistics.calls_failed = calls_failed_.load();
  statistics.call_p50 = latencies_.quantile(0.5);
  statistics.call_p99 = latencies_.quantile(0.99);
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

// Calls with tensors whose bytes are still being copied from a device. No thread waits for the device. Until
// the bytes are complete such a call is in the table of pending calls without a link. Its deadline, a
// cancellation, the loss of its worker and a shutdown end it there, and it is then never sent.

// The steps:
//   1. Get a link. Without one, or if a device is lost, the call fails.
//   2. attach(): from here on the end of the link finds the call, and a cancellation is left to this
//      thread. If the call has ended, nothing is sent.
//   3. Send it, with the time that is left.
void Caller::send_now(CopiedCall& call) {
  proto::Request& request = *call.envelope->mutable_request();
  const Worker& to = call.peer->worker;
  const absl::StatusOr<std::shared_ptr<Link>> link =
      call.copied.ok() ? link_to(call.peer) : absl::StatusOr<std::shared_ptr<Link>>(call.copied);
  if (!link.ok()) {
    rrefs_.undo(request.arguments(), to);
    const std::string& at = call.copied.ok() ? to.name : runtime_.self.name;
    if (PendingCalls::Taken taken = pending_.take(call.id))
      complete(std::move(taken), describe_error([&] { return with_worker(link.status(), at); }));
    return;
  }
  if (!pending_.attach(call.id, *link)) {
    rrefs_.undo(request.arguments(), to);
    return;
  }
  request.set_timeout_us(timeout_us(call.deadline, Clock::system().now()));
  transmit(call.id, *link, to, *call.envelope, std::move(call.tensors), call.borrow);
}

// Calls of idempotent functions, which outlive their connection (proto/rpc.proto, "Repeated calls"). Between
// a failed attempt and the next one such a call stays in the table of pending calls, without a link. Its
// deadline, a cancellation and a shutdown end it there as well.

void Caller::send_repeatable(uint64_t id, proto::Envelope& envelope, EncodedTensors tensors,
                             PendingCalls::Taken call) {
  // Each attempt sends a copy of this request. Attempts share the buffers, which own their memory, so the
  // caller may change its tensors meanwhile.
  auto request = std::make_shared<RepeatableRequest>();
  *request->envelope = envelope;
  request->buffers = std::move(tensors.buffers);
  const uint64_t to = call->incarnation;
  request->id = request_ids_.begin(to);
  absl::Cleanup not_added = [this, to, request_id = request->id] { request_ids_.end(to, request_id); };
  request->envelope->mutable_request()->set_request_id(request->id);
  call->repeatable = std::move(request);
  calls_made_.fetch_add(1, std::memory_order_relaxed);
  // Nothing is being sent yet. A cancellation may take the call at once, and attempt() then finds that it has
  // ended.
  call->sending = false;
  add_pending(id, std::move(call), [&] {
    std::move(not_added).Cancel();
    if (tensors.copies == nullptr) {
      attempt(id);
      return;
    }
    runtime_.fences->watch(std::move(tensors.copies), [this, id,
                                                       agent = runtime_.agent](absl::Status status) {
      const std::shared_ptr<Agent> alive = agent.lock();
      if (alive == nullptr) return;
      if (status.ok()) {
        run_steps(id, [&] { attempt(id); });
      } else if (PendingCalls::Taken taken = pending_.take(id)) {
        complete(std::move(taken), describe_error([&] { return with_worker(status, runtime_.self.name); }));
      }
    });
  });
}

// Another thread may end the call at any time: its answer, its deadline, a cancellation, or the end of the
// link. So an attempt has these steps:
//   1. Count the attempt. Stop if the call has ended.
//   2. Connect, which may block.
//   3. attach(): from here on the end of the link finds the call, and a cancellation is left to this thread.
//   4. Send a copy of the request with its attempt number, its watermark and the remaining time.
//   5. sent(): send a Cancel if the call was cancelled during steps 3 and 4. If the send has failed, detach()
//      decides whether this thread or the end of the link begins the next attempt.
void Caller::attempt(uint64_t id) {
  const std::optional<PendingCalls::Attempt> call = pending_.attempt(id, /*begins=*/true);
  if (!call) return;
  const absl::StatusOr<std::shared_ptr<Link>> link = link_to(call->peer);
  if (!link.ok()) {
    attempt_failed(id, link.status());
    return;
  }
  if (!pending_.attach(id, *link)) return;
  EnvelopeBox envelope;
  *envelope = *call->request->envelope;
  proto::Request& request = *envelope->mutable_request();
  request.set_call_id(id);
  request.set_attempt(static_cast<uint32_t>(call->number));
  // The watermark is read for each attempt, because earlier calls may have ended since the last one. It never
  // passes this request, which is still open.
  request.set_answered_below(request_ids_.answered_below(call->peer->worker.incarnation));
  request.set_timeout_us(timeout_us(call->deadline, Clock::system().now()));
  const absl::StatusOr<uint64_t> ticket = (*link)->send(*envelope, call->request->buffers);
  if (PendingCalls::Taken given_up = pending_.sent(id, ticket.ok() ? *ticket : 0)) {
    absl::Status reason = given_up->given_up;
    retract(id, std::move(given_up), std::move(reason));
  } else if (!ticket.ok() && pending_.detach(id, **link)) {
    // Only one of two threads may begin the next attempt. The end of the link takes the link away from the
    // call (PendingCalls::take_link). Then detach() fails here.
    attempt_failed(id, ticket.status());
  }
}

// A call is repeated only after Unavailable, which says that the connection is broken, and while this worker
// has no descriptor or memory for a connection. Any other error would come again. No attempt begins after the
// deadline, after shutdown, or after the loss of the worker. Between this decision and take() the call may
// end on another thread. Then this function does nothing.
void Caller::attempt_failed(uint64_t id, const absl::Status& reason) {
  const std::optional<PendingCalls::Attempt> call = pending_.attempt(id, /*begins=*/false);
  if (!call) return;
  const Worker& worker = call->peer->worker;
  const absl::Time next = Clock::system().now() + runtime_.options.retry.backoff_after(call->number);
  const bool may_pass = absl::IsUnavailable(reason) || is_local_shortage(reason);
  if (may_pass && call->number < runtime_.options.retry.max_attempts && next < call->deadline &&
      may_reach(worker).ok()) {
    calls_repeated_.fetch_add(1, std::memory_order_relaxed);
    log(LogLevel::kDebug, "\"", call->callee, "\" on worker \"", worker.name,
        "\" is called again, because attempt ", call->number, " failed: ", reason.message());
    // The attempt runs on the executor, because connecting may block, and others need the timers' thread.
    runtime_.timers->schedule(next, [this, id] {
      runtime_.executor->post_clean([this, id] { run_steps(id, [&] { attempt(id); }); });
    });
    return;
  }
  PendingCalls::Taken taken = pending_.take(id);
  if (taken == nullptr) return;
  // After shutdown the peer receives a Goodbye, and cancels the call itself.
  if (absl::Status closed = runtime_.accepts_calls(); !closed.ok()) {
    complete(std::move(taken), std::move(closed));
    return;
  }
  const absl::Status lost = may_reach(worker);
  const absl::Status& cause = lost.ok() ? reason : lost;
  const std::string text =
      absl::StrCat("call of \"", call->callee, "\" on worker \"", worker.name, "\" failed in ", call->number,
                   call->number == 1 ? " attempt: " : " attempts: ", cause.message());
  absl::Status failed(cause.code(), text);
  // A local shortage did not arise at the worker.
  if (!is_local_shortage(cause)) failed = with_worker(std::move(failed), worker.name);
  // An earlier attempt may be running at the callee, so it receives a Cancel.
  retract(id, std::move(taken), std::move(failed));
}

}  // namespace gradwire::rpc
