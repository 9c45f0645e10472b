#include "gradwire/rpc/caller/call_completion.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/metrics/peer_calls.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {
namespace {

bool any_requires_grad(const proto::Payload& payload) {
  return std::any_of(payload.tensors().begin(), payload.tensors().end(),
                     [](const proto::Tensor& tensor) { return tensor.requires_grad(); });
}

// Decodes the answer to a call.
absl::StatusOr<IncomingPayload> unpack(PendingCall& call, Answer answer, RRefService& rrefs,
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

CallCompletion::CallCompletion(AgentRuntime& runtime, Peers& peers, RRefService& rrefs, PendingCalls& pending,
                               RequestIds& request_ids)
    : runtime_(runtime), peers_(peers), rrefs_(rrefs), pending_(pending), request_ids_(request_ids) {}

absl::Status CallCompletion::may_reach(const Worker& worker) const {
  GRADWIRE_RETURN_IF_ERROR(runtime_.accepts_calls());
  return peers_.status(worker);
}

// The end of this agent or of the other worker closes links before it ends calls. A thread that finds a link
// closed in between must not report the closed link: every later call fails with the reason of that end.
void CallCompletion::fail(PendingCalls::Taken call, absl::Status failure) {
  const Worker& callee = call->peer->worker;
  if (absl::Status closed = runtime_.accepts_calls(); !closed.ok()) {
    complete(std::move(call), std::move(closed));
    return;
  }
  if (const absl::Status lost = peers_.status(callee); !lost.ok()) {
    failure =
        absl::Status(lost.code(), absl::StrCat("call of \"", call->callee, "\" failed: ", lost.message()));
  }
  complete(std::move(call), with_worker(std::move(failure), callee.name));
}

void CallCompletion::complete(PendingCalls::Taken call, absl::StatusOr<Answer> answer) {
  // Copy borrowed buffers before completing the call: the caller may modify its tensors afterwards.
  if (call->borrows && call->link != nullptr) call->link->capture(call->ticket);
  // Give the credit back before completing, too, so that the caller's next call finds room in the window.
  // This may admit a call that waits for room, on this thread.
  call->credit.give_back();
  // The next request to this worker may say that this answer is not needed any more.
  if (call->repeatable != nullptr) request_ids_.end(call->incarnation, call->repeatable->id);
  const absl::Time now = Clock::system().now();
  const int64_t took_ns = absl::ToUnixNanos(now) - absl::ToUnixNanos(call->started);
  runtime_.recorder->ended(call->record, now, answer.status().code());
  if (runtime_.call_metrics != nullptr) {
    Peer& peer = *call->peer;
    peer.made_metrics.in(*runtime_.call_metrics, peer.worker.name)
        .made(call->callee, answer.status().code(), took_ns);
  }
  if (answer.ok()) {
    latencies_.record_ns(took_ns);
  } else {
    calls_failed_.fetch_add(1, std::memory_order_relaxed);
  }
  if (call->profile != nullptr) {
    call->profile->end(answer.ok() ? answer->response().events() : ProfiledCall::Events());
    call->profile = nullptr;
  }
  // From here on code of the user may run, so no lock is held.
  if (call->answered) {
    call->answered(std::move(answer));
  } else if (answer.ok()) {
    call->done(unpack(*call, *std::move(answer), rrefs_, runtime_.devices, runtime_.graph_hook));
  } else {
    call->references.clear();
    call->done(answer.status());
  }
  // Destroy the call while it still counts as unfinished. Its last handles may send messages about
  // references. A graceful shutdown must see the call or these messages.
  call = nullptr;
  pending_.finished();
}

void CallCompletion::count(AgentStatistics& statistics) const {
  statistics.calls_failed = calls_failed_.load();
  statistics.call_p50 = latencies_.quantile(0.5);
  statistics.call_p99 = latencies_.quantile(0.99);
}

}  // namespace gradwire::rpc
