#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"

// Calls of idempotent functions, which outlive their connection (proto/rpc.proto, "Repeated calls"). Between
// a failed attempt and the next one such a call stays in the table of pending calls, without a link. Its
// deadline, a cancellation and a shutdown end it there as well.
namespace gradwire::rpc {

void Caller::send_repeatable(uint64_t id, proto::Envelope& envelope, EncodedTensors tensors,
                             PendingCalls::Taken call) {
  // Each attempt sends a copy of this request. Attempts share the buffers, which own their memory, so the
  // caller may change its tensors meanwhile.
  auto request = std::make_shared<RepeatableRequest>();
  request->id = request_ids_.begin(call->incarnation);
  envelope.mutable_request()->set_request_id(request->id);
  request->envelope = envelope;
  request->buffers = std::move(tensors.buffers);
  call->repeatable = std::move(request);
  calls_made_.fetch_add(1, std::memory_order_relaxed);
  // Nothing is being sent yet. A cancellation may take the call at once, and attempt() then finds that it has
  // ended.
  call->sending = false;
  add_pending(id, std::move(call));
  if (tensors.copies == nullptr) {
    attempt(id);
    return;
  }
  runtime_.fences->watch(std::move(tensors.copies), [this, id, agent = runtime_.agent](absl::Status status) {
    const std::shared_ptr<Agent> alive = agent.lock();
    if (alive == nullptr) return;
    if (status.ok()) {
      attempt(id);
    } else if (PendingCalls::Taken taken = pending_.take(id)) {
      completion_.complete(std::move(taken), with_worker(std::move(status), runtime_.self.name));
    }
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
  proto::Envelope envelope = call->request->envelope;
  proto::Request& request = *envelope.mutable_request();
  request.set_call_id(id);
  request.set_attempt(static_cast<uint32_t>(call->number));
  // The watermark is read for each attempt, because earlier calls may have ended since the last one. It never
  // passes this request, which is still open.
  request.set_answered_below(request_ids_.answered_below(call->peer->worker.incarnation));
  request.set_timeout_us(timeout_us(call->deadline, Clock::system().now()));
  const absl::StatusOr<uint64_t> ticket = (*link)->send(envelope, call->request->buffers);
  if (PendingCalls::Taken given_up = pending_.sent(id, ticket.ok() ? *ticket : 0)) {
    absl::Status reason = given_up->given_up;
    retract(id, std::move(given_up), std::move(reason));
  } else if (!ticket.ok() && pending_.detach(id, **link)) {
    // Only one of two threads may begin the next attempt. The end of the link takes the link away from the
    // call (PendingCalls::take_link). Then detach() fails here.
    attempt_failed(id, ticket.status());
  }
}

// A call is repeated only after Unavailable, which says that the connection is broken. Any other error would
// come again. No attempt begins after the deadline, after shutdown, or after the loss of the worker.
// Between this decision and take() the call may end on another thread. Then this function does nothing.
void Caller::attempt_failed(uint64_t id, const absl::Status& reason) {
  const std::optional<PendingCalls::Attempt> call = pending_.attempt(id, /*begins=*/false);
  if (!call) return;
  const Worker& worker = call->peer->worker;
  const absl::Time next = Clock::system().now() + runtime_.options.retry.backoff_after(call->number);
  if (absl::IsUnavailable(reason) && call->number < runtime_.options.retry.max_attempts &&
      next < call->deadline && completion_.may_reach(worker).ok()) {
    calls_repeated_.fetch_add(1, std::memory_order_relaxed);
    log(LogLevel::kDebug, "\"", call->callee, "\" on worker \"", worker.name,
        "\" is called again, because attempt ", call->number, " failed: ", reason.message());
    // The attempt runs on the executor, because connecting may block, and others need the timers' thread.
    runtime_.timers->schedule(next,
                              [this, id] { runtime_.executor->post_clean([this, id] { attempt(id); }); });
    return;
  }
  PendingCalls::Taken taken = pending_.take(id);
  if (taken == nullptr) return;
  // After shutdown the peer receives a Goodbye, and cancels the call itself.
  if (absl::Status closed = runtime_.accepts_calls(); !closed.ok()) {
    completion_.complete(std::move(taken), std::move(closed));
    return;
  }
  const absl::Status lost = completion_.may_reach(worker);
  const absl::Status& cause = lost.ok() ? reason : lost;
  const std::string text =
      absl::StrCat("call of \"", call->callee, "\" on worker \"", worker.name, "\" failed in ", call->number,
                   call->number == 1 ? " attempt: " : " attempts: ", cause.message());
  // An earlier attempt may be running at the callee, so it receives a Cancel.
  retract(id, std::move(taken), with_worker(absl::Status(cause.code(), text), worker.name));
}

}  // namespace gradwire::rpc
