#include "gradwire/autograd/optimizer/optimizer_shard.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/autograd/optimizer/optimizer_closure.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/deadline.h"
#include "gradwire/rpc/order/stream_order.h"

namespace gradwire::autograd {
namespace {

absl::Time call_deadline() {
  auto call = rpc::CallContext::current();
  return call == nullptr ? absl::InfiniteFuture() : call->deadline().on_system_clock();
}

Engine& engine_of(const std::weak_ptr<rpc::Agent>& weak, std::shared_ptr<rpc::Agent>& agent) {
  agent = weak.lock();
  if (agent == nullptr) throw Error(absl::FailedPreconditionError("the agent has shut down"));
  return *value_or_throw(Engine::of(*agent));
}

// Sets `.grad` of the parameters for a scope. libtorch's optimizers read `.grad`, but the gradients of a pass
// are in its context. The old values are restored, because a program may also use `.grad` itself.
class GradientSwap {
 public:
  explicit GradientSwap(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {
    for (const at::Tensor& parameter : parameters) previous_.push_back(parameter.grad());
  }
  ~GradientSwap() { set(previous_); }

  void set(const std::vector<at::Tensor>& gradients) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = gradients[i];
  }

 private:
  const std::vector<at::Tensor>& parameters_;
  std::vector<at::Tensor> previous_;
};

bool any_defined(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& each) { return each.defined(); });
}

std::vector<at::Tensor> flatten(const std::vector<std::vector<at::Tensor>>& groups) {
  std::vector<at::Tensor> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

std::vector<std::size_t> sizes_of(const std::vector<std::vector<at::Tensor>>& groups) {
  std::vector<std::size_t> sizes;
  for (const auto& group : groups) sizes.push_back(group.size());
  return sizes;
}

std::shared_ptr<const std::vector<uintptr_t>> addresses_of(const std::vector<at::Tensor>& tensors) {
  std::vector<uintptr_t> addresses;
  for (const at::Tensor& each : tensors) {
    addresses.push_back(reinterpret_cast<uintptr_t>(each.unsafeGetTensorImpl()));
  }
  std::sort(addresses.begin(), addresses.end());
  return std::make_shared<const std::vector<uintptr_t>>(std::move(addresses));
}

// Returns the tensors of these groups. Refuses a tensor that is listed twice: libtorch would accept it and
// step it twice.
std::vector<std::vector<at::Tensor>> local_parameters(const std::vector<OptimizerShard::Group>& groups) {
  std::vector<std::vector<at::Tensor>> parameters;
  HashSet<const void*> seen;
  for (const auto& [number, references] : groups) {
    std::vector<at::Tensor>& group = parameters.emplace_back();
    for (const auto& reference : references) {
      const at::Tensor& tensor = group.emplace_back(reference.local_value());
      if (!tensor.defined()) {
        throw Error(absl::InvalidArgumentError(
            absl::StrCat("a parameter of group ", number, " is an undefined tensor")));
      }
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) {
        throw Error(absl::InvalidArgumentError(
            absl::StrCat("a parameter of group ", number, " is listed twice, in this group or another")));
      }
    }
  }
  return parameters;
}

// NaN if the options have no learning rate.
double rate_of(const torch::optim::OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    return std::numeric_limits<double>::quiet_NaN();
  }
}

std::unique_ptr<torch::optim::Optimizer> make_or_explain(
    const OptimizerShard::MakeOptimizer& make, const std::vector<std::vector<at::Tensor>>& parameters,
    const std::string& kind) {
  try {
    return make(parameters);
  } catch (...) {
    const absl::Status status = status_from_exception(std::current_exception());
    throw Error(absl::InvalidArgumentError(absl::StrCat("cannot make ", kind, ": ", status.message())));
  }
}

}  // namespace

rpc::RRef<OptimizerShard> OptimizerShard::make(const std::vector<Group>& groups, const Settings& settings,
                                               const MakeOptimizer& make_optimizer) {
  const std::shared_ptr<rpc::Agent> agent = rpc::Agent::current();
  Engine& engine = *value_or_throw(Engine::of(*agent));
  const std::vector<Tensors> parameters = local_parameters(groups);
  std::vector<int64_t> numbers;
  for (const Group& group : groups) numbers.push_back(group.first);
  auto shard =
      std::static_pointer_cast<OptimizerShard>(engine.shared(settings.name, [&]() -> std::shared_ptr<void> {
        auto made = std::make_shared<OptimizerShard>(
            agent, settings, numbers, parameters, make_or_explain(make_optimizer, parameters, settings.kind));
        engine.watch(made->round_);
        return made;
      }));
  const Settings& existing = shard->settings_;
  auto refuse = [&](const std::string& what) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("the distributed optimizer \"", settings.name, "\" exists already ", what)));
  };
  if (existing.kind != settings.kind || existing.consistency != settings.consistency ||
      existing.trainers != settings.trainers || existing.require_gradients != settings.require_gradients) {
    refuse(absl::StrCat("with other settings: got ", settings.kind, " for ", settings.trainers,
                        " trainers, expected ", existing.kind, " for ", existing.trainers,
                        " trainers, with the same consistency and require_gradients"));
  }
  const Tensors flat = flatten(parameters);
  const bool same_parameters =
      numbers == shard->groups_ &&
      std::equal(flat.begin(), flat.end(), shard->parameters_.begin(), shard->parameters_.end(),
                 [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
  if (!same_parameters) refuse("for other parameters or groups");
  if (settings.same_options != nullptr &&
      !settings.same_options(existing.options.get(), settings.options.get())) {
    refuse("with other options");
  }
  // The round must fail if this trainer is lost before its first step.
  if (auto call = rpc::CallContext::current()) {
    if (auto trainer = agent->services().find_worker(call->caller()); trainer.ok()) {
      shard->round_->add_trainer(trainer->incarnation);
    }
  }
  return rpc::RRef<OptimizerShard>(*agent, shard);
}

OptimizerShard::OptimizerShard(const std::shared_ptr<rpc::Agent>& agent, Settings settings,
                               std::vector<int64_t> groups, std::vector<Tensors> parameters,
                               std::unique_ptr<torch::optim::Optimizer> optimizer)
    : agent_(agent),
      settings_(std::move(settings)),
      groups_(std::move(groups)),
      group_sizes_(sizes_of(parameters)),
      parameters_(flatten(parameters)),
      addresses_(addresses_of(parameters_)),
      round_(std::make_shared<SyncRound>(agent, settings_.name, settings_.trainers)),
      optimizer_(std::move(optimizer)) {
  if (settings_.consistency == Consistency::kWait) value_or_throw(Engine::of(*agent))->barrier().arm();
}

OptimizerShard::~OptimizerShard() {
  std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr || settings_.consistency != Consistency::kWait) return;
  if (auto engine = Engine::of(*agent); engine.ok()) (*engine)->barrier().disarm();
}

// The paths through a step:
// 1. kSync: deposit the gradients. The last trainer's thread averages them and steps for all.
// 2. A gradient is required and missing: change nothing, and report it.
// 3. No gradient at all: only set the learning rates. The barrier must not wait for this context any longer.
// 4. kWait: wait at the barrier without blocking a thread, then step.
// 5. kHogwild: step at once.
// Only in 1 and 4 may the future complete after this function has returned.
Future<OptimizerShard::Missing> OptimizerShard::step(uint64_t origin, uint64_t counter, const Rates& rates) {
  std::shared_ptr<rpc::Agent> agent;
  Engine& engine = engine_of(agent_, agent);
  const rpc::Id id{origin, counter};
  Promise<Missing> done(agent->executor());
  Future<Missing> future = done.future();
  if (settings_.consistency == Consistency::kSync) {
    // enter() makes the context live if no message of it has arrived. It then has no gradients here, but its
    // trainer counts in the round.
    const auto call = rpc::CallContext::current();
    const rpc::Worker trainer = call == nullptr
                                    ? agent->services().self()
                                    : value_or_throw(agent->services().find_worker(call->caller()));
    const auto context = value_or_throw(engine.contexts().enter(id, trainer.incarnation));
    round_->deposit({id, trainer, gradients_of(*context), rates, std::move(done)}, call_deadline(),
                    [&](const Tensors& averages, const Rates& latest) -> absl::StatusOr<Missing> {
                      const Missing missing = missing_of(averages);
                      if (!refuses(missing)) GRADWIRE_RETURN_IF_ERROR(apply(averages, latest));
                      return missing;
                    });
    return future;
  }
  const absl::StatusOr<std::shared_ptr<ContextState>> context = engine.contexts().find(id);
  const Tensors gradients = context.ok() ? gradients_of(**context) : Tensors();
  const Missing missing = missing_of(gradients);
  if (refuses(missing)) {
    done.set_value(missing);
  } else if (!any_defined(gradients)) {
    if (!rates.empty()) set_learning_rates(rates);
    // The context has had its backward, so it does not count as forwarding any more.
    engine.barrier().backward_ended(id);
    done.set_value(missing);
  } else if (settings_.consistency == Consistency::kWait) {
    step_when_admitted(*context, rates, call_deadline(), std::move(done));
  } else {
    throw_if_error(apply(gradients, rates));
    done.set_value(missing);
  }
  return future;
}

OptimizerShard::Tensors OptimizerShard::gradients_of(ContextState& context) const {
  MutexLock lock(context.mutex);
  return context.gradients.hand_out(parameters_);
}

OptimizerShard::Missing OptimizerShard::missing_of(const Tensors& gradients) const {
  Missing missing{0, 0, 0};
  std::size_t next = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::size_t position = 0; position < group_sizes_[g]; ++position, ++next) {
      if (next < gradients.size() && gradients[next].defined()) continue;
      if (std::get<0>(missing)++ > 0) continue;
      std::get<1>(missing) = groups_[g];
      std::get<2>(missing) = static_cast<int64_t>(position);
    }
  }
  return missing;
}

// libtorch's optimizers are not thread-safe, so the mutex is held while `function` runs. A step with a
// closure is the exception: it only sets `closure_runs_`, which is examined here.
// On accelerators the mutex is not enough: the state and the parameters are changed on the streams of the
// thread that steps.
// 1. These streams wait for the use before this one.
// 2. They wait for all handlers and passes of this worker that have ended: these may still read the
//    parameters. The streams of this step's call do not, if the step had to wait for another trainer.
// 3. Later handlers wait for this use. The end of the call is too late for that: a forward of another trainer
//    may begin as soon as the step barrier knows that the step has ended.
absl::Status OptimizerShard::with_optimizer(absl::string_view what, const std::function<void()>& function) {
  try {
    at::NoGradGuard no_graph;
    MutexLock lock(step_mutex_);
    if (closure_runs_) {
      throw Error(absl::FailedPreconditionError(
          "cannot use the optimizer while a step with a closure runs: wait for its end"));
    }
    if (last_use_ != nullptr) throw_if_error(last_use_->wait());
    const std::shared_ptr<rpc::Agent> agent = agent_.lock();
    rpc::StreamOrder* const order = agent == nullptr ? nullptr : agent->services().stream_order().get();
    if (order != nullptr) order->wait();
    function();
    last_use_ = device::DeviceFence::record_for(parameters_);
    if (order != nullptr) order->add();
  } catch (...) {
    return caught(absl::StrCat("in the ", what, " of ", settings_.kind));
  }
  return absl::OkStatus();
}

absl::Status OptimizerShard::apply(const Tensors& gradients, const Rates& rates) {
  return with_optimizer("step", [&] {
    apply_rates(rates);
    if (!any_defined(gradients)) return;
    GradientSwap swap(parameters_);
    swap.set(gradients);
    optimizer_->step();
  });
}

// Taking the gradients uses their device, which may be lost.
absl::StatusOr<OptimizerShard::Missing> OptimizerShard::step_with_gradients_of(ContextState& context,
                                                                               const Rates& rates) try {
  const Tensors gradients = gradients_of(context);
  GRADWIRE_RETURN_IF_ERROR(apply(gradients, rates));
  return missing_of(gradients);
} catch (...) {
  return caught(absl::StrCat("in the step of ", settings_.kind));
}

// The barrier calls the continuation on the thread whose call let the step pass, so it must be quick: the
// step itself is posted to the executor. The captured agent keeps its engine alive, and with that the
// barrier; `self` keeps the optimizer alive.
// Every step that has passed must call step_ended(), or the barrier would hold later requests back
// indefinitely. So the task is run here if the executor has shut down (post_or_run), and
// step_with_gradients_of() reports exceptions as a status.
void OptimizerShard::step_when_admitted(const std::shared_ptr<ContextState>& context, const Rates& rates,
                                        absl::Time deadline, Promise<Missing> done) {
  std::shared_ptr<rpc::Agent> agent;
  Engine& engine = engine_of(agent_, agent);
  StepBarrierDriver& barrier = engine.barrier();
  barrier.step(context->id, addresses_, rpc::answer_by(Clock::system().now(), deadline),
               [self = shared_from_this(), context, rates, done = std::move(done), agent,
                &barrier](absl::Status admitted) {
                 if (!admitted.ok()) {
                   done.set_error(self->explain_wait(admitted, context->id, barrier, *agent));
                   return;
                 }
                 agent->executor()->post_or_run([self, context, rates, done, agent, &barrier] {
                   const absl::StatusOr<Missing> missing = self->step_with_gradients_of(*context, rates);
                   barrier.step_ended(self->addresses_);
                   done.set_result(missing);
                 });
               });
}

absl::Status OptimizerShard::explain_wait(const absl::Status& status, const rpc::Id& context,
                                          const StepBarrierDriver& barrier, const rpc::Agent& agent) const {
  if (!absl::IsDeadlineExceeded(status)) return status;
  absl::btree_set<std::string> trainers;
  for (const rpc::Id& other : barrier.forwarding_contexts()) {
    if (other == context) continue;
    const absl::StatusOr<rpc::Worker> trainer = agent.services().find_worker_by_incarnation(other.origin);
    trainers.insert(trainer.ok() ? absl::StrCat("\"", trainer->name, "\"") : "an unknown worker");
  }
  if (trainers.empty()) return status;
  return absl::DeadlineExceededError(absl::StrCat(
      status.message(), ": the optimizer \"", settings_.name, "\" waits for the backward of trainer",
      trainers.size() == 1 ? " " : "s ", absl::StrJoin(trainers, ", "),
      "; each trainer must step after its backward, and destroy a Context that it gives up; with "
      "DistributedDataParallel use Consistency::kSync, because a trainer's backward there waits for the "
      "other trainers"));
}

// Problem: the optimizer calls the trainer in the middle of its step, so the mutex must not be held during
// the step.
// 1. With the mutex: set the rates and `closure_runs_`, which makes every other use fail until the end.
// 2. Without it: step. Each evaluation runs the closure on the trainer, then takes the gradients from the
//    context that the trainer names and that lives until the next evaluation.
// 3. Restore `.grad`, and with the mutex reset `closure_runs_`, also after an exception.
std::pair<at::Tensor, OptimizerShard::Missing> OptimizerShard::step_with_closure(
    const rpc::RRef<ClosureTurns>& closure, const Rates& rates) {
  if (settings_.consistency == Consistency::kSync) {
    throw Error(absl::FailedPreconditionError(
        absl::StrCat(settings_.kind,
                     " needs gradients during its step, so Consistency::kSync cannot gather them before it: "
                     "use Consistency::kWait and one trainer")));
  }
  std::shared_ptr<rpc::Agent> agent;
  Engine& engine = engine_of(agent_, agent);
  throw_if_error(with_optimizer("step", [&] {
    apply_rates(rates);
    closure_runs_ = true;
  }));
  at::Tensor loss;
  Missing missing{0, 0, 0};
  absl::Status status;
  try {
    at::NoGradGuard no_graph;
    GradientSwap swap(parameters_);
    loss = optimizer_->step([&] {
      // The call needs no timeout: the handler that runs here has a deadline, which is the caller's step
      // timeout.
      auto [value, origin, counter] =
          closure.with_timeout(absl::InfiniteDuration()).rpc_sync<&ClosureTurns::evaluate>();
      // The pass of the closure may still read the parameters on its streams.
      if (const auto& order = agent->services().stream_order()) order->wait();
      const auto context = engine.contexts().find({origin, counter});
      const Tensors gradients = context.ok() ? gradients_of(**context) : Tensors(parameters_.size());
      missing = missing_of(gradients);
      if (refuses(missing)) {
        throw Error(absl::FailedPreconditionError(absl::StrCat(
            "got no gradient for parameter ", std::get<2>(missing), " of group ", std::get<1>(missing),
            ", expected one for every parameter (require_gradients); run the forward in the context that is "
            "passed to the closure")));
      }
      swap.set(gradients);
      return value;
    });
  } catch (...) {
    status = caught(absl::StrCat("in the step of ", settings_.kind));
  }
  {
    MutexLock lock(step_mutex_);
    closure_runs_ = false;
    last_use_ = device::DeviceFence::record_for(parameters_);
  }
  throw_if_error(status);
  return {loss, missing};
}

void OptimizerShard::apply_rates(const Rates& rates) {
  if (rates.empty()) return;
  auto& groups = optimizer_->param_groups();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto number = static_cast<std::size_t>(groups_[i]);
    if (number >= rates.size()) {
      throw Error(
          absl::InvalidArgumentError(absl::StrCat("no learning rate for group ", number, ": got ",
                                                  rates.size(), " rates, expected one for each group")));
    }
    groups.at(i).options().set_lr(rates[number]);
  }
}

void OptimizerShard::set_learning_rates(const Rates& rates) {
  throw_if_error(with_optimizer("learning rates", [&] { apply_rates(rates); }));
}

std::vector<std::pair<int64_t, double>> OptimizerShard::learning_rates() {
  std::vector<std::pair<int64_t, double>> rates;
  throw_if_error(with_optimizer("learning rates", [&] {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      rates.emplace_back(groups_[i], rate_of(optimizer_->param_groups().at(i).options()));
    }
  }));
  return rates;
}

std::vector<OptimizerShard::Shapes> OptimizerShard::shapes() {
  std::vector<Shapes> shapes;
  throw_if_error(with_optimizer("parameters", [&] {
    for (const auto& group : optimizer_->param_groups()) {
      Shapes& each = shapes.emplace_back();
      for (const at::Tensor& parameter : group.params()) {
        each.emplace_back(parameter.sizes().vec(), parameter.scalar_type());
      }
    }
  }));
  return shapes;
}

SavedGroups OptimizerShard::save() {
  SavedGroups groups;
  throw_if_error(with_optimizer("state", [&] { groups = take_apart(*optimizer_); }));
  return groups;
}

void OptimizerShard::load(const SavedGroups& groups) {
  throw_if_error(with_optimizer("state", [&] { put_together(groups, *optimizer_); }));
}

}  // namespace gradwire::autograd
