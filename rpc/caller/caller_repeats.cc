#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"

// How calls of idempotent functions outlive their connection (proto/rpc.proto, "Repeated calls"). Such a call
// stays in the table, without a link, between an attempt that failed and the next; whatever ends a call ends
// it there too.
namespace gradwire::rpc {

void Caller::send_repeatable(uint64_t id, proto::Envelope& envelope, std::vector<transport::Buffer> buffers,
                             PendingCalls::Taken call) {
  auto request = std::make_shared<RepeatableRequest>();
  request->id = request_ids_.begin(call->incarnation);
  envelope.mutable_request()->set_request_id(request->id);
  request->envelope = envelope;
  request->buffers = std::move(buffers);
  call->repeatable = std::move(request);
  calls_made_.fetch_add(1, std::memory_order_relaxed);
  call->sending = false;
  add_pending(id, std::move(call));
  attempt(id);
}

void Caller::attempt(uint64_t id) {
  const std::optional<PendingCalls::Attempt> call = pending_.attempt(id, /*begins=*/true);
  if (!call) return;
  const absl::StatusOr<std::shared_ptr<Link>> link = link_to(call->peer);
  if (!link.ok()) {
    interrupted(id, link.status());
    return;
  }
  if (!pending_.attach(id, *link)) return;
  proto::Envelope envelope = call->request->envelope;
  proto::Request& request = *envelope.mutable_request();
  request.set_call_id(id);
  request.set_attempt(static_cast<uint32_t>(call->number));
  request.set_answered_below(request_ids_.answered_below(call->peer->worker.incarnation));
  request.set_timeout_us(timeout_us(call->deadline, Clock::system().now()));
  const absl::StatusOr<uint64_t> ticket = (*link)->send(envelope, call->request->buffers);
  if (PendingCalls::Taken given_up = pending_.sent(id, ticket.ok() ? *ticket : 0)) {
    absl::Status reason = given_up->given_up;
    retract(id, std::move(given_up), std::move(reason));
  } else if (!ticket.ok() && pending_.detach(id, **link)) {
    interrupted(id, ticket.status());
  }
}

void Caller::interrupted(uint64_t id, const absl::Status& reason) {
  const std::optional<PendingCalls::Attempt> call = pending_.attempt(id, /*begins=*/false);
  if (!call) return;
  const Worker& worker = call->peer->worker;
  const absl::Time next = Clock::system().now() + runtime_.options.retry.backoff_after(call->number);
  if (absl::IsUnavailable(reason) && call->number < runtime_.options.retry.max_attempts &&
      next < call->deadline && runtime_.accepts_calls().ok() && peers_.status(worker).ok()) {
    calls_repeated_.fetch_add(1, std::memory_order_relaxed);
    log(LogLevel::kDebug, "\"", call->callee, "\" on worker \"", worker.name,
        "\" is called again after attempt ", call->number, ": ", reason.message());
    // Connecting takes its time, and others need the timers' thread.
    runtime_.timers->schedule(next,
                              [this, id] { runtime_.executor->post_clean([this, id] { attempt(id); }); });
    return;
  }
  PendingCalls::Taken taken = pending_.take(id);
  if (taken == nullptr) return;
  if (absl::Status closed = runtime_.accepts_calls(); !closed.ok()) {
    complete(std::move(taken), std::move(closed));
    return;
  }
  const std::string text =
      absl::StrCat("worker \"", worker.name, "\" could not be reached, or went away, while \"", call->callee,
                   "\" was under way, in ", call->number,
                   call->number == 1 ? " attempt: " : " attempts: ", reason.message());
  retract(id, std::move(taken), with_worker(absl::Status(reason.code(), text), worker.name));
}

}  // namespace gradwire::rpc
