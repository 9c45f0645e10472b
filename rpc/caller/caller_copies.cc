#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/rref/service.h"

// Calls with tensors whose bytes are still being copied from a device. No thread waits for the device. Until
// the bytes are complete such a call is in the table of pending calls without a link. Its deadline, a
// cancellation, the loss of its worker and a shutdown end it there, and it is then never sent.
namespace gradwire::rpc {

// The steps:
//   1. Get a link. Without one, or if a device is lost, the call fails.
//   2. attach(): from here on the end of the link finds the call, and a cancellation is left to this
//      thread. If the call has ended, nothing is sent.
//   3. Send it, with the time that is left.
void Caller::send_now(CopiedCall& call) {
  proto::Request& request = *call.envelope.mutable_request();
  const Worker& to = call.peer->worker;
  const absl::StatusOr<std::shared_ptr<Link>> link =
      call.copied.ok() ? link_to(call.peer) : absl::StatusOr<std::shared_ptr<Link>>(call.copied);
  if (!link.ok()) {
    rrefs_.undo(request.arguments(), to);
    const std::string& at = call.copied.ok() ? to.name : runtime_.self.name;
    if (PendingCalls::Taken taken = pending_.take(call.id))
      completion_.complete(std::move(taken), with_worker(link.status(), at));
    return;
  }
  if (!pending_.attach(call.id, *link)) {
    rrefs_.undo(request.arguments(), to);
    return;
  }
  request.set_timeout_us(timeout_us(call.deadline, Clock::system().now()));
  transmit(call.id, *link, to, call.envelope, std::move(call.tensors), call.borrow);
}

}  // namespace gradwire::rpc
