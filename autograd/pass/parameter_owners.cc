#include "gradwire/autograd/pass/parameter_owners.h"

#include <algorithm>
#include <string>

#include "gradwire/autograd/pass/engine.h"
#include "gradwire/rpc/calls/agent_services.h"

namespace gradwire::autograd {

// The owners are in the order in which they first occur, and each keeps the original positions of its
// parameters. So answers can be put into the order of the caller again.
std::vector<ParameterOwner> by_owner(absl::Span<const ParameterRefs> groups) {
  std::vector<ParameterOwner> owners;
  for (std::size_t number = 0; number < groups.size(); ++number) {
    for (std::size_t position = 0; position < groups[number].size(); ++position) {
      const rpc::RRef<at::Tensor>& parameter = groups[number][position];
      if (parameter.handle() == nullptr) {
        throw Error(
            absl::InvalidArgumentError(absl::StrCat("parameter ", position, " of group ", number,
                                                    " is an empty RRef, expected a reference to a tensor")));
      }
      const rpc::WorkerInfo worker = parameter.owner();
      auto owner = std::find_if(owners.begin(), owners.end(),
                                [&](const ParameterOwner& each) { return each.worker == worker; });
      if (owner == owners.end()) owner = owners.insert(owners.end(), ParameterOwner{worker, {}});
      if (owner->groups.empty() || owner->groups.back().number != number) {
        owner->groups.push_back({number, {}, {}});
      }
      owner->groups.back().parameters.push_back(parameter);
      owner->groups.back().positions.push_back(position);
    }
  }
  return owners;
}

std::shared_ptr<ContextState> live_context(const rpc::Agent& agent, const ContextRef& context) {
  Engine& engine = *value_or_throw(Engine::of(agent));
  return value_or_throw(context.number().has_value() ? engine.contexts().find(*context.number())
                                                     : engine.contexts().find(context.id()));
}

// Records the owners as if a message of the context had been sent to them. Without that, an owner that makes
// the context live for this call would never get its CLEANUP.
void notify_of_end(const rpc::Agent& agent, const rpc::Id& context,
                   const std::vector<ParameterOwner>& owners) {
  Engine& engine = *value_or_throw(Engine::of(agent));
  for (const ParameterOwner& owner : owners) {
    engine.contexts().touch(context, value_or_throw(agent.services().find_worker(owner.worker)).incarnation);
  }
}

namespace owners_internal {

void throw_failure(const absl::Status& status, absl::string_view what, const ParameterOwner& owner,
                   std::size_t failed, std::size_t all) {
  std::string where = absl::StrCat(what, " on worker \"", owner.worker.name, "\"");
  if (all > 1) {
    absl::StrAppend(&where, " (", failed, " of ", all, " owners failed",
                    failed < all ? ", the others succeeded)" : ")");
  }
  throw Error(with_context(status, where));
}

}  // namespace owners_internal
}  // namespace gradwire::autograd
