#include "gradwire/rpc/caller/call_steps.h"

#include "gradwire/base/error.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/rref/service.h"

// The steps of a call that need the definitions of the agent's parts, so that rpc/call.h need not include
// them.
namespace gradwire::rpc::call_internal {

void cancel(Agent& agent, uint64_t id, absl::Status reason) { agent.caller().cancel(id, std::move(reason)); }

void set_target(OutgoingCall& call, const RRefHandle& handle) {
  to_proto(handle.rref(), *call.request().mutable_target());
}

void end_with_creation(const std::shared_ptr<Agent>& agent, const RRefHandle& target, uint64_t id) {
  // The usual case: the object exists, so nothing has to be registered.
  if (target.created().done() && target.created().result().ok()) return;
  // The callback stays in the future of the target, which may outlive the agent. So it holds the agent
  // weakly, and the call by its id. After the call has ended, cancel() has no effect.
  target.created().on_ready_inline([weak = agent->weak_from_this(), id](const absl::Status& created) {
    if (created.ok()) return;
    if (const std::shared_ptr<Agent> alive = weak.lock()) cancel(*alive, id, created);
  });
}

std::shared_ptr<RRefHandle> send_remote(const std::shared_ptr<Agent>& agent, OutgoingCall& call,
                                        const std::string& type, const std::shared_ptr<RRefHandle>& keep) {
  throw_if_error(call.status());
  Promise<void> created(agent->executor());
  RRefService::Remote remote = value_or_throw(agent->rrefs().begin_remote(call.to(), type, created));
  to_proto(remote.handle->rref(), *call.request().mutable_result_rref());
  to_proto(remote.fork, *call.request().mutable_result_fork());
  // The completion holds `remote`, and so the handle: even if the user drops the reference at once, the fork
  // is released only after end_remote() has confirmed it. `keep` lives as long.
  // send() may run the completion before it returns.
  const uint64_t id = call.send(
      [weak = agent->weak_from_this(), remote, created, keep](const absl::StatusOr<IncomingPayload>& in) {
        created.set_result(in.status());
        if (std::shared_ptr<Agent> alive = weak.lock()) alive->rrefs().end_remote(remote, in.status());
      });
  if (keep != nullptr) end_with_creation(agent, *keep, id);
  return remote.handle;
}

}  // namespace gradwire::rpc::call_internal
