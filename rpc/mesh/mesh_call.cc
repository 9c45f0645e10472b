#include "gradwire/rpc/mesh/mesh_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call_steps.h"
#include "gradwire/rpc/mesh/mesh_error.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc::mesh_internal {

std::size_t find_member(const std::vector<std::string>& names, absl::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  throw Error(absl::NotFoundError(absl::StrCat(
      "member \"", name, "\" not found in the mesh; its members are ", absl::StrJoin(names, ", "))));
}

absl::Duration timeout_of_call(const Agent& agent, const std::optional<absl::Duration>& timeout) {
  const absl::Duration left = agent.services().call_deadline(timeout) - Clock::system().now();
  // Rounded, because time has passed since the deadline was fixed.
  return left == absl::InfiniteDuration() ? left : absl::Ceil(left, absl::Milliseconds(1));
}

uint64_t send_to(const std::shared_ptr<Agent>& agent, GroupCall& group, const MemberTarget& member,
                 std::size_t index, OutgoingCall::Completion done) {
  MemberCall call(group, member.to, index);
  if (member.object == nullptr) return call.send(std::move(done));
  return call_internal::send_on(agent, call, *member.object,
                                [done = std::move(done), keep = member.object](
                                    absl::StatusOr<IncomingPayload> in) mutable { done(std::move(in)); });
}

// As call_internal::send_remote(), for each member.
std::vector<std::shared_ptr<RRefHandle>> send_remotes(const std::shared_ptr<Agent>& agent, GroupCall& group,
                                                      const CallLabel& label,
                                                      const std::vector<MemberTarget>& members,
                                                      const std::string& type) {
  std::vector<std::shared_ptr<RRefHandle>> handles;
  std::vector<MemberFailure> failures;
  for (std::size_t i = 0; i < members.size(); ++i) {
    MemberCall call(group, members[i].to, i);
    const Promise<void> created(agent->executor());
    if (!call.status().ok()) {
      failures.push_back({(*label.names)[i], call.status()});
      continue;
    }
    const absl::StatusOr<RRefService::Remote> remote = agent->rrefs().begin_remote(call.to(), type, created);
    if (!remote.ok()) {
      failures.push_back({(*label.names)[i], remote.status()});
      continue;
    }
    to_proto(remote->handle->rref(), *call.request().mutable_result_rref());
    to_proto(remote->fork, *call.request().mutable_result_fork());
    handles.push_back(remote->handle);
    call.send([weak = agent->weak_from_this(), remote = *remote,
               created](const absl::StatusOr<IncomingPayload>& in) {
      created.set_result(in.status());
      if (const std::shared_ptr<Agent> alive = weak.lock()) alive->rrefs().end_remote(remote, in.status());
    });
  }
  // The objects that were made are freed with their handles.
  throw_if_error(failure_of_members(label.action, members.size(), label.timeout, failures));
  return handles;
}

void cancel_all(const std::weak_ptr<Agent>& agent, const std::vector<uint64_t>& ids,
                const absl::Status& reason) {
  const std::shared_ptr<Agent> alive = agent.lock();
  if (alive == nullptr) return;
  for (const uint64_t id : ids) call_internal::cancel(*alive, id, reason);
}

}  // namespace gradwire::rpc::mesh_internal
