#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/rref.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/deadline.h"
#include "gradwire/rpc/mesh/mesh_function.h"
#include "gradwire/rpc/mesh/relay_tree.h"
#include "gradwire/rpc/registry/registration.h"

// The function that passes a broadcast on, for values of type T.
namespace gradwire::rpc::mesh_internal {

// The answer of relay(): references to the value at each member of the subtree, and the members without it.
template <class T>
using RelayReport = std::pair<std::vector<std::pair<uint64_t, RRef<T>>>, std::vector<RelayFailure>>;

template <class T>
Future<RelayReport<T>> relay(const std::vector<uint64_t>& members, const T& value);

template <class T>
absl::StatusOr<RelayOutcome> decode_report(IncomingPayload& in) {
  GRADWIRE_ASSIGN_OR_RETURN(RelayReport<T> report,
                            call_internal::decode_answer<RelayReport<T>>(std::move(in)));
  RelayOutcome outcome;
  for (const auto& [incarnation, value] : report.first)
    outcome.delivered.emplace_back(incarnation, value.handle());
  outcome.failed = std::move(report.second);
  return outcome;
}

// `members` and `value` must live until the future of RelayTree::start() has completed.
template <class T>
std::shared_ptr<RelayTree> make_relay_tree(const std::shared_ptr<Agent>& agent,
                                           const std::vector<uint64_t>& members, absl::Time deadline,
                                           const T& value) {
  auto call =
      std::make_unique<GroupCall>(agent->caller(), call_internal::name_of<&relay<T>>(), members.size());
  call_internal::set_function<&relay<T>>(*call);
  call->template add_argument<std::vector<uint64_t>>(members);
  call->template add_argument<T>(value);
  return std::make_shared<RelayTree>(agent, members, deadline, std::move(call), &decode_report<T>);
}

// Serves a broadcast at a member: sends the value to this worker's children in the tree, then becomes the
// owner of its own copy. So no other code can change the value while it is being sent. The children end a
// little before the caller stops waiting, so that it learns which of them were late.
template <class T>
Future<RelayReport<T>> relay(const std::vector<uint64_t>& members, const T& value) {
  const std::shared_ptr<Agent> agent = Agent::current();
  const uint64_t self = agent->services().self().incarnation;
  const std::size_t place = value_or_throw(place_in(members, self));
  const absl::Time deadline =
      answer_by(Clock::system().now(), CallContext::current()->deadline().on_system_clock());
  using Result = typename Future<RelayReport<T>>::Result;
  const auto report = [weak = std::weak_ptr<Agent>(agent), self,
                       &value](const RelayOutcome& outcome) -> Result {
    const std::shared_ptr<Agent> alive = weak.lock();
    if (alive == nullptr) return absl::CancelledError("the agent was destroyed");
    RelayReport<T> report;
    report.first.emplace_back(self, RRef<T>(*alive, std::make_shared<T>(value)));
    for (const auto& [incarnation, handle] : outcome.delivered)
      report.first.emplace_back(incarnation, RRef<T>(handle));
    report.second = outcome.failed;
    return report;
  };
  const std::vector<std::size_t> children = TreePlan(members.size(), kBroadcastFanout).children(place);
  if (children.empty()) return report(RelayOutcome());
  return make_relay_tree<T>(agent, members, deadline, value)->start(children).then(report);
}

template <class T>
std::string relay_name() {
  return absl::StrCat("gradwire::broadcast[", value_type_name<T>(), "]");
}

}  // namespace gradwire::rpc::mesh_internal

// Allows Mesh::broadcast of values of this type. At namespace scope, in a library that all workers link.
// Gradwire registers at::Tensor.
#define GRADWIRE_RPC_BROADCAST(type)                                    \
  GRADWIRE_RPC_AS((::gradwire::rpc::mesh_internal::relay_name<type>()), \
                  &::gradwire::rpc::mesh_internal::relay<type>)
