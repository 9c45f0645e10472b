#include "gradwire/rpc/calls/call_steps.h"

#include "gradwire/base/error.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/rref/service.h"

// The steps of a call that need the definitions of the agent's parts, so that rpc/calls/call.h need not
// include them.
namespace gradwire::rpc::call_internal {

void cancel(Agent& agent, uint64_t id, absl::Status reason) { agent.caller().cancel(id, std::move(reason)); }

// The steps:
//   1. The value exists, as usual: nothing more is needed. Or it will never exist: the owner would wait for
//   it
//      in vain, so nothing is sent.
//   2. Its creation has not ended: enter the call, which leaves when it ends, so that the reference keeps no
//      ended calls.
//   3. The call can be ended only by its id, which is known after it was sent.
uint64_t send_unless_failed(const std::shared_ptr<Agent>& agent, const RRefHandle& target,
                            OutgoingCall::Completion done,
                            absl::FunctionRef<uint64_t(OutgoingCall::Completion)> send) {
  const std::shared_ptr<CallsBeforeCreation>& early = target.early_calls();
  const uint64_t number = early == nullptr || target.created().done() ? 0 : early->add();
  if (number == 0) {
    absl::Status created = target.created().done() ? target.created().result() : absl::OkStatus();
    if (created.ok()) return send(std::move(done));
    done(std::move(created));
    return 0;
  }
  const uint64_t id =
      send([early, number, done = std::move(done)](absl::StatusOr<IncomingPayload> in) mutable {
        early->remove(number);
        done(std::move(in));
      });
  // The callback may outlive the agent. After the call has ended, cancel() has no effect.
  early->sent(number, [weak = agent->weak_from_this(), id](const absl::Status& created) {
    if (const std::shared_ptr<Agent> alive = weak.lock()) cancel(*alive, id, created);
  });
  return id;
}

std::shared_ptr<RRefHandle> send_remote(const std::shared_ptr<Agent>& agent, OutgoingCall& call,
                                        const std::string& type, const std::shared_ptr<RRefHandle>& object) {
  throw_if_error(call.status());
  Promise<void> created(agent->executor());
  RRefService::Remote remote = value_or_throw(agent->rrefs().begin_remote(call.to(), type, created));
  to_proto(remote.handle->rref(), *call.request().mutable_result_rref());
  to_proto(remote.fork, *call.request().mutable_result_fork());
  // The completion holds `remote`, and so the handle: even if the user drops the reference at once, the fork
  // is released only after end_remote() has confirmed it. `object` lives as long.
  // send() may run the completion before it returns.
  auto done = [weak = agent->weak_from_this(), remote, created,
               object](const absl::StatusOr<IncomingPayload>& in) {
    created.set_result(in.status());
    if (std::shared_ptr<Agent> alive = weak.lock()) alive->rrefs().end_remote(remote, in.status());
  };
  try {
    if (object == nullptr) {
      call.send(std::move(done));
    } else {
      send_on(agent, call, *object, std::move(done));
    }
  } catch (...) {
    // The call was not begun, unless its completion has run.
    if (!created.future().done()) {
      absl::Status error = caught("sending a call");
      created.set_error(error);
      agent->rrefs().end_remote(remote, error);
    }
    throw;
  }
  return remote.handle;
}

}  // namespace gradwire::rpc::call_internal
