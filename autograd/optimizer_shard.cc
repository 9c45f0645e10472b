#include "autograd/optimizer_shard.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/error.h"
#include "rpc/call_context.h"

namespace gradwire::autograd {
namespace {

absl::Time call_deadline() {
  auto call = rpc::CallContext::current();
  return call == nullptr ? absl::InfiniteFuture() : call->deadline();
}

Engine& engine_of(const std::weak_ptr<rpc::Agent>& weak, std::shared_ptr<rpc::Agent>& agent) {
  agent = weak.lock();
  if (agent == nullptr) throw Error(absl::FailedPreconditionError("the agent has shut down"));
  return *value_or_throw(Engine::of(*agent));
}

// Puts gradients into .grad for a scope.
class GradientSwap {
 public:
  GradientSwap(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients)
      : parameters_(parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      previous_.push_back(parameters[i].grad());
      parameters[i].mutable_grad() = gradients[i];
    }
  }
  ~GradientSwap() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = previous_[i];
  }

 private:
  const std::vector<at::Tensor>& parameters_;
  std::vector<at::Tensor> previous_;
};

}  // namespace

rpc::RRef<OptimizerShard> OptimizerShard::make(const std::vector<rpc::RRef<at::Tensor>>& references,
                                               const Settings& settings,
                                               const MakeOptimizer& make_optimizer) {
  const std::shared_ptr<rpc::Agent> agent = rpc::Agent::current();
  Engine& engine = *value_or_throw(Engine::of(*agent));
  std::vector<at::Tensor> parameters;
  for (const auto& reference : references) parameters.push_back(reference.local_value());
  auto shard =
      std::static_pointer_cast<OptimizerShard>(engine.shared(settings.name, [&]() -> std::shared_ptr<void> {
        auto made = std::make_shared<OptimizerShard>(agent, settings, parameters, make_optimizer(parameters));
        engine.watch(made);
        return made;
      }));
  const Settings& there = shard->settings_;
  if (there.kind != settings.kind || there.consistency != settings.consistency ||
      there.trainers != settings.trainers) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("the distributed optimizer \"", settings.name, "\" exists here as a ", there.kind,
                     " for ", there.trainers, " trainers, or with another consistency")));
  }
  const bool same =
      std::equal(parameters.begin(), parameters.end(), shard->parameters_.begin(), shard->parameters_.end(),
                 [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
  if (!same) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("the distributed optimizer \"", settings.name, "\" exists here for other parameters")));
  }
  if (auto call = rpc::CallContext::current()) {
    if (auto trainer = agent->find_worker(call->caller()); trainer.ok()) {
      MutexLock lock(shard->mutex_);
      if (shard->trainers_.insert(trainer->incarnation).second) shard->lost_ = absl::OkStatus();
    }
  }
  return rpc::RRef<OptimizerShard>(*agent, shard);
}

OptimizerShard::OptimizerShard(const std::shared_ptr<rpc::Agent>& agent, Settings settings,
                               std::vector<at::Tensor> parameters,
                               std::unique_ptr<torch::optim::Optimizer> optimizer)
    : agent_(agent),
      settings_(std::move(settings)),
      parameters_(std::move(parameters)),
      optimizer_(std::move(optimizer)) {
  if (settings_.consistency == Consistency::kWait) value_or_throw(Engine::of(*agent))->gate().arm();
}

OptimizerShard::~OptimizerShard() {
  std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr || settings_.consistency != Consistency::kWait) return;
  if (auto engine = Engine::of(*agent); engine.ok()) (*engine)->gate().disarm();
}

Future<void> OptimizerShard::step(uint64_t origin, uint64_t counter) {
  std::shared_ptr<rpc::Agent> agent;
  Engine& engine = engine_of(agent_, agent);
  // Made live if it has not been here: then it has no gradients here, but its trainer counts.
  std::shared_ptr<ContextState> context = value_or_throw(engine.contexts().enter({origin, counter}));
  Promise<void> done(agent->executor());
  Future<void> future = done.future();
  switch (settings_.consistency) {
    case Consistency::kWait:
      step_when_admitted(context, call_deadline(), std::move(done));
      break;
    case Consistency::kSync:
      deposit(context, call_deadline(), std::move(done));
      break;
    case Consistency::kHogwild:
      throw_if_error(apply(gradients_of(*context)));
      done.set_value();
      break;
  }
  return future;
}

OptimizerShard::Tensors OptimizerShard::gradients_of(ContextState& context) const {
  Tensors gradients;
  MutexLock lock(context.mutex);
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor* gradient = context.gradients.find(parameter);
    gradients.push_back(gradient == nullptr ? at::Tensor() : *gradient);
  }
  return gradients;
}

absl::Status OptimizerShard::apply(const Tensors& gradients) {
  try {
    at::NoGradGuard no_graph;
    MutexLock lock(step_mutex_);
    GradientSwap swap(parameters_, gradients);
    optimizer_->step();
  } catch (...) {
    return with_context(status_from_exception(std::current_exception()),
                        absl::StrCat("in the step of ", settings_.kind));
  }
  return absl::OkStatus();
}

void OptimizerShard::step_when_admitted(const std::shared_ptr<ContextState>& context, absl::Time deadline,
                                        Promise<void> done) {
  std::shared_ptr<rpc::Agent> agent;
  Engine& engine = engine_of(agent_, agent);
  Gate& gate = engine.gate();
  gate.step(
      context->id, deadline,
      [self = shared_from_this(), context, done = std::move(done), agent, &gate](absl::Status admitted) {
        if (!admitted.ok()) {
          done.set_error(std::move(admitted));
          return;
        }
        agent->executor()->post_or_run([self, context, done, agent, &gate] {
          absl::Status status = self->apply(self->gradients_of(*context));
          gate.step_ended();
          if (status.ok()) {
            done.set_value();
          } else {
            done.set_error(std::move(status));
          }
        });
      });
}

void OptimizerShard::set_learning_rate(double rate) {
  MutexLock lock(step_mutex_);
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(rate);
}

double OptimizerShard::learning_rate() {
  MutexLock lock(step_mutex_);
  return optimizer_->param_groups().at(0).options().get_lr();
}

double gradient_norm(uint64_t origin, uint64_t counter, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                     double p) {
  Engine& engine = *value_or_throw(Engine::of(*rpc::Agent::current()));
  const auto context = value_or_throw(engine.contexts().enter({origin, counter}));
  std::vector<at::Tensor> gradients;
  for (const auto& reference : parameters) {
    const at::Tensor parameter = reference.local_value();
    MutexLock lock(context->mutex);
    if (const at::Tensor* gradient = context->gradients.find(parameter)) gradients.push_back(*gradient);
  }
  double total = 0;
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor values = gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
    const double norm = at::linalg_vector_norm(values.detach(), p).item<double>();
    total = std::isinf(p) ? std::max(total, norm) : total + std::pow(norm, p);
  }
  return total;
}

void scale_gradients(uint64_t origin, uint64_t counter, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                     double factor) {
  at::NoGradGuard no_graph;
  Engine& engine = *value_or_throw(Engine::of(*rpc::Agent::current()));
  const auto context = value_or_throw(engine.contexts().enter({origin, counter}));
  for (const auto& reference : parameters) {
    const at::Tensor parameter = reference.local_value();
    MutexLock lock(context->mutex);
    if (context->gradients.contains(parameter)) {
      at::Tensor& gradient = context->gradients[parameter];
      // Not in place: whoever asked for the gradient before keeps what he got.
      gradient = gradient.mul(factor);
    }
  }
}

}  // namespace gradwire::autograd
