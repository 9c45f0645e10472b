#include "autograd/distributed_optimizer.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "autograd/active_context.h"
#include "autograd/engine.h"
#include "base/error.h"

namespace gradwire::autograd {

GRADWIRE_RPC_METHOD(OptimizerShard, step)
GRADWIRE_RPC_METHOD(OptimizerShard, set_learning_rate)
GRADWIRE_RPC(gradient_norm)
GRADWIRE_RPC(scale_gradients)

namespace {

// Checks that the context lives, and sees to it that these owners hear of its end.
rpc::Id prepare(rpc::Agent& agent, const ContextRef& context, const std::vector<rpc::WorkerInfo>& owners) {
  Engine& engine = *value_or_throw(Engine::of(agent));
  const std::shared_ptr<ContextState> state =
      value_or_throw(context.number().has_value() ? engine.contexts().find(*context.number())
                                                  : engine.contexts().find(context.id()));
  for (const rpc::WorkerInfo& owner : owners) {
    engine.contexts().touch(state->id, value_or_throw(agent.find_worker(owner)).incarnation);
  }
  return state->id;
}

// Waits for all, then throws the first error: when it is thrown nothing is under way any more.
template <class T>
std::vector<T> wait_for_all(std::vector<Future<T>> futures) {
  std::vector<T> values;
  absl::Status status;
  for (const Future<T>& future : futures) {
    absl::StatusOr<T> result = future.result();
    if (result.ok()) {
      values.push_back(*std::move(result));
    } else if (status.ok()) {
      status = result.status();
    }
  }
  throw_if_error(status);
  return values;
}

void wait_for_all(const std::vector<Future<void>>& futures) {
  absl::Status status;
  for (const Future<void>& future : futures) {
    absl::Status result = future.result();
    if (status.ok()) status = result;
  }
  throw_if_error(status);
}

}  // namespace

namespace optimizer_internal {

std::vector<Owner> by_owner(const std::vector<rpc::RRef<at::Tensor>>& parameters) {
  std::vector<Owner> owners;
  for (const auto& parameter : parameters) {
    const rpc::WorkerInfo worker = parameter.owner();
    auto found = std::find_if(owners.begin(), owners.end(),
                              [&](const Owner& owner) { return owner.worker == worker; });
    if (found == owners.end()) found = owners.insert(owners.end(), {worker, {}});
    found->parameters.push_back(parameter);
  }
  return owners;
}

Shards make_shards(
    const std::shared_ptr<rpc::Agent>& agent, const std::vector<rpc::RRef<at::Tensor>>& parameters,
    absl::Duration timeout,
    const std::function<Future<rpc::RRef<OptimizerShard>>(const Owner&, const rpc::Destination&)>& make) {
  if (parameters.empty()) throw Error(absl::InvalidArgumentError("a distributed optimizer needs parameters"));
  ActiveContextSlot::Scope no_context(nullptr);
  std::vector<Future<rpc::RRef<OptimizerShard>>> made;
  for (const Owner& owner : by_owner(parameters)) {
    made.push_back(make(owner, rpc::Destination(owner.worker).with_timeout(timeout)));
  }
  return Shards(agent, wait_for_all(std::move(made)), timeout);
}

Shards::Shards(std::shared_ptr<rpc::Agent> agent, std::vector<rpc::RRef<OptimizerShard>> shards,
               absl::Duration timeout)
    : agent_(std::move(agent)), shards_(std::move(shards)), timeout_(timeout) {}

void Shards::step(const ContextRef& context) {
  std::vector<rpc::WorkerInfo> owners;
  for (const auto& shard : shards_) owners.push_back(shard.owner());
  const rpc::Id id = prepare(*agent_, context, owners);
  // The steps are no part of the context's forward.
  ActiveContextSlot::Scope no_context(nullptr);
  std::vector<Future<void>> steps;
  for (const auto& shard : shards_) {
    steps.push_back(shard.with_timeout(timeout_).rpc_async<&OptimizerShard::step>(id.origin, id.counter));
  }
  wait_for_all(steps);
}

void Shards::set_learning_rate(double rate) {
  ActiveContextSlot::Scope no_context(nullptr);
  std::vector<Future<void>> calls;
  for (const auto& shard : shards_) {
    calls.push_back(shard.with_timeout(timeout_).rpc_async<&OptimizerShard::set_learning_rate>(rate));
  }
  wait_for_all(calls);
}

void refuse_closure_optimizer(const char* name) {
  throw Error(absl::FailedPreconditionError(absl::StrCat(
      "DistributedOptimizer<", name, ">::step: ", name,
      " evaluates the loss several times in a step, through a closure, which cannot be done on each owner "
      "by itself; use another optimizer")));
}

}  // namespace optimizer_internal

double clip_grad_norm_(const ContextRef& context, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                       double max_norm, double norm_type) {
  const std::shared_ptr<rpc::Agent> agent = context.agent();
  const auto owners = optimizer_internal::by_owner(parameters);
  std::vector<rpc::WorkerInfo> workers;
  for (const auto& owner : owners) workers.push_back(owner.worker);
  const rpc::Id id = prepare(*agent, context, workers);
  ActiveContextSlot::Scope no_context(nullptr);
  std::vector<Future<double>> norms;
  for (const auto& owner : owners) {
    norms.push_back(
        agent->rpc_async<&gradient_norm>(owner.worker, id.origin, id.counter, owner.parameters, norm_type));
  }
  double total = 0;
  for (double norm : wait_for_all(std::move(norms)))
    total = std::isinf(norm_type) ? std::max(total, norm) : total + norm;
  if (!std::isinf(norm_type)) total = std::pow(total, 1 / norm_type);
  // The small number is libtorch's, so that results agree.
  const double factor = max_norm / (total + 1e-6);
  if (factor >= 1) return total;
  std::vector<Future<void>> scalings;
  for (const auto& owner : owners) {
    scalings.push_back(
        agent->rpc_async<&scale_gradients>(owner.worker, id.origin, id.counter, owner.parameters, factor));
  }
  wait_for_all(scalings);
  return total;
}

}  // namespace gradwire::autograd
