// Tests of steps: results as in one process, groups, schedules, closures, number of calls, and errors.
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/types.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/autograd/optimizer/optimizer_test_util.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gtest/gtest.h"

namespace gradwire::autograd {

// A meeting of two optimizers: each waits in its step until both have arrived.
class Meeting {
 public:
  void reset() {
    MutexLock lock(mutex_);
    there_ = 0;
  }
  void arrive() {
    MutexLock lock(mutex_);
    ++there_;
    changed_.notify_all();
    while (there_ < 2) {
      if (!changed_.wait_for(mutex_, absl::Seconds(30)))
        throw std::runtime_error("no other thread arrived within 30 s");
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int there_ ABSL_GUARDED_BY(mutex_) = 0;
};
Meeting& meeting() {
  static Meeting meeting;
  return meeting;
}

struct CustomOptions : torch::optim::OptimizerCloneableOptions<CustomOptions> {};

// An optimizer whose step() calls `Step`.
template <class Step>
class Custom : public torch::optim::Optimizer {
 public:
  Custom(std::vector<at::Tensor> parameters, const CustomOptions& options)
      : Optimizer(std::move(parameters), std::make_unique<CustomOptions>(options)) {}
  at::Tensor step(LossClosure) override {
    Step()();
    return at::Tensor();
  }
};
struct MeetOthers {
  void operator()() const { meeting().arrive(); }
};
struct Throw {
  void operator()() const { throw std::runtime_error("the step fails on purpose"); }
};
using MeetingOptimizer = Custom<MeetOthers>;
using ThrowingOptimizer = Custom<Throw>;

template <>
struct OptimizerTraits<MeetingOptimizer> {
  using Options = CustomOptions;
  static const char* name() { return "MeetingOptimizer"; }
};
template <>
struct OptimizerTraits<ThrowingOptimizer> {
  using Options = CustomOptions;
  static const char* name() { return "ThrowingOptimizer"; }
};

}  // namespace gradwire::autograd

template <>
struct gradwire::rpc::Codec<gradwire::autograd::CustomOptions> {
  static std::string type_name() { return "CustomOptions"; }
  static absl::Status encode(const autograd::CustomOptions&, Encoder&, proto::Value& out) {
    out.set_none(true);
    return absl::OkStatus();
  }
  static absl::StatusOr<autograd::CustomOptions> decode(const proto::Value&, Decoder&) {
    return autograd::CustomOptions();
  }
};

namespace gradwire::autograd {

GRADWIRE_OPTIMIZER(MeetingOptimizer)
GRADWIRE_OPTIMIZER(ThrowingOptimizer)

namespace {

using rpc::AgentGuard;
using rpc::RRef;
using rpc::testing::Group;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::OptimizerParamGroup;

std::string message_of(const absl::Status& status) { return std::string(status.message()); }

// ---- Results as in one process.

template <class O>
void expect_same_as_local(const typename OptimizerTraits<O>::Options& options) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<O> optimizer(pair.parameters, options);
  O local(pair.local, options);
  for (int step = 0; step < 6; ++step) {
    Context context;
    backward(context, {pair.loss(step)});
    optimizer.step(context);
    local.zero_grad();
    pair.local_loss(step).backward();
    local.step();
    ASSERT_TRUE(equal(pair.values(), pair.local)) << step;
  }
}

TEST(OptimizerSteps, SgdIsAsInOneProcess) { expect_same_as_local<torch::optim::SGD>(sgd_options()); }
TEST(OptimizerSteps, NesterovIsAsInOneProcess) {
  expect_same_as_local<torch::optim::SGD>(nesterov_options());
}
TEST(OptimizerSteps, AdamIsAsInOneProcess) { expect_same_as_local<torch::optim::Adam>(adam_options()); }
TEST(OptimizerSteps, AdamWIsAsInOneProcess) { expect_same_as_local<torch::optim::AdamW>(adamw_options()); }
TEST(OptimizerSteps, AdagradIsAsInOneProcess) {
  expect_same_as_local<torch::optim::Adagrad>(adagrad_options());
}
TEST(OptimizerSteps, RmsPropIsAsInOneProcess) {
  expect_same_as_local<torch::optim::RMSprop>(rmsprop_options());
}

// Both groups have parameters on both owners.
TEST(OptimizerSteps, GroupsHaveOptionsOfTheirOwn) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  const auto other = torch::optim::AdamOptions(0.3).weight_decay(0.1);
  DistributedOptimizer<torch::optim::Adam> optimizer(
      {{.parameters = {pair.parameters[3], pair.parameters[0]}},
       {.parameters = {pair.parameters[1], pair.parameters[2]}, .options = other}},
      adam_options());
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{pair.local[3], pair.local[0]});
  groups.emplace_back(std::vector<at::Tensor>{pair.local[1], pair.local[2]},
                      std::make_unique<torch::optim::AdamOptions>(other));
  torch::optim::Adam local(groups, adam_options());
  EXPECT_EQ(optimizer.learning_rates(), (std::vector<double>{0.05, 0.3}));
  for (int step = 0; step < 5; ++step) {
    if (step == 3) {
      optimizer.set_learning_rates({0.01, 0.02});
      local.param_groups()[0].options().set_lr(0.01);
      local.param_groups()[1].options().set_lr(0.02);
    }
    Context context;
    backward(context, {pair.loss(step)});
    optimizer.step(context);
    local.zero_grad();
    pair.local_loss(step).backward();
    local.step();
    ASSERT_TRUE(equal(pair.values(), pair.local)) << step;
  }
}

// ---- Schedules.

TEST(OptimizerSteps, SchedulersDriveTheRatesOfAllGroupsWithoutCalls) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<torch::optim::SGD> optimizer(
      {{.parameters = {pair.parameters[0], pair.parameters[2]}},
       {.parameters = {pair.parameters[1]}, .options = torch::optim::SGDOptions(0.05)},
       {.parameters = {pair.parameters[3]}}},
      torch::optim::SGDOptions(0.2).momentum(0.5));
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{pair.local[0], pair.local[2]});
  groups.emplace_back(std::vector<at::Tensor>{pair.local[1]},
                      std::make_unique<torch::optim::SGDOptions>(0.05));
  groups.emplace_back(std::vector<at::Tensor>{pair.local[3]});
  torch::optim::SGD local(groups, torch::optim::SGDOptions(0.2).momentum(0.5));
  torch::optim::StepLR schedule(optimizer.schedulable(), 2, 0.5), local_schedule(local, 2, 0.5);
  torch::optim::ReduceLROnPlateauScheduler plateau(optimizer.schedulable(),
                                                   torch::optim::ReduceLROnPlateauScheduler::min, 0.3, 1);
  torch::optim::ReduceLROnPlateauScheduler local_plateau(local, torch::optim::ReduceLROnPlateauScheduler::min,
                                                         0.3, 1);
  for (int step = 0; step < 8; ++step) {
    Context context;
    backward(context, {pair.loss(step)});
    const uint64_t before = group[0]->statistics().calls_made;
    optimizer.step(context);
    schedule.step();
    plateau.step(1);
    EXPECT_EQ(group[0]->statistics().calls_made - before, 2u) << "one call for each owner";
    local.zero_grad();
    pair.local_loss(step).backward();
    local.step();
    local_schedule.step();
    local_plateau.step(1);
    ASSERT_TRUE(equal(pair.values(), pair.local)) << step;
  }
  std::vector<double> rates;
  for (const auto& each : local.param_groups()) rates.push_back(each.options().get_lr());
  EXPECT_NE(rates[0], 0.2);
  // learning_rates() includes the rates that a scheduler has set last, although no step has sent them.
  EXPECT_EQ(optimizer.learning_rates(), rates);
}

TEST(OptimizerSteps, SchedulerContinuesFromTheRateThatWasSet) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<torch::optim::SGD> optimizer(pair.parameters, torch::optim::SGDOptions(0.5));
  torch::optim::StepLR schedule(optimizer.schedulable(), 1, 0.5);
  optimizer.set_learning_rate(4);
  schedule.step();
  schedule.step();
  EXPECT_EQ(optimizer.learning_rates(), std::vector<double>{2});
  EXPECT_EQ(status_of([&] {
              optimizer.set_learning_rates({1, 2});
            }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of([&] { optimizer.schedulable().step(); }).code(), absl::StatusCode::kFailedPrecondition);
}

// ---- Parameters without a gradient.

TEST(OptimizerSteps, OwnerWithoutAGradientNeitherStepsNorWaits) {
  Group group(4);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<ThrowingOptimizer> throws_where_it_steps(
      std::vector<RRef<at::Tensor>>{pair.parameters[2]}, CustomOptions());
  DistributedOptimizer<torch::optim::SGD> optimizer(
      pair.parameters, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.5),
      {.timeout = absl::Seconds(40)});
  const std::vector<at::Tensor> before = pair.values();
  std::thread other([&] {
    AgentGuard other_guard(group[3]);
    // This forward never has its backward, so a step on worker2's parameters would wait for it.
    Context forward_only;
    RRef<Layer> second = group[3]->remote<Layer>("worker2", torch::ones({6}));
    (void)second.rpc_sync<&Layer::forward>(input(0));
    std::thread trainer([&] {
      AgentGuard trainer_guard(group[0]);
      Context context;
      backward(context, {pair.layers[0].rpc_sync<&Layer::forward_first>(input(0)).sum()});
      optimizer.step(context);
      throws_where_it_steps.step(context);
      EXPECT_EQ(value_or_throw(Engine::of(*group[2]))->contexts().size(), 1u)
          << "a step must not add its context to an owner without gradients";
    });
    trainer.join();
  });
  other.join();
  const std::vector<at::Tensor> after = pair.values();
  EXPECT_FALSE(torch::equal(before[0], after[0]));
  // Parameters without a gradient get no weight decay and no momentum, on either owner.
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(torch::equal(before[i], after[i])) << i;
  Context context;
  backward(context, {pair.loss(0)});
  EXPECT_EQ(status_of([&] { throws_where_it_steps.step(context); }).code(), absl::StatusCode::kUnknown);
}

// ---- A step locks only its own parameters.

class Overlap : public ::testing::TestWithParam<Consistency> {};

// Each step returns only after the other has begun, on the same owner.
TEST_P(Overlap, StepsOfTwoTrainersOnDifferentParametersOverlap) {
  Group group(3);
  meeting().reset();
  Meeting backward_done;
  std::vector<std::thread> trainers;
  for (int t = 0; t < 2; ++t) {
    trainers.emplace_back([&, t] {
      AgentGuard guard(group[t]);
      try {
        RRef<Layer> layer = group[t]->remote<Layer>("worker2", torch::ones({6}));
        DistributedOptimizer<MeetingOptimizer> optimizer(
            layer.rpc_sync<&Layer::parameters>(), CustomOptions(),
            {.consistency = GetParam(), .timeout = absl::Seconds(40)});
        Context context;
        backward(context, {layer.rpc_sync<&Layer::forward>(input(t)).sum()});
        // Both trainers must have run their forward before one steps: a forward would wait for a step that
        // runs.
        backward_done.arrive();
        optimizer.step(context);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "trainer " << t << ": " << error.what();
      }
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
}

INSTANTIATE_TEST_SUITE_P(OptimizerSteps, Overlap,
                         ::testing::Values(Consistency::kWait, Consistency::kSync, Consistency::kHogwild));

// ---- Closures.

TEST(OptimizerSteps, LbfgsWithAClosureIsAsInOneProcess) {
  Group group(3);
  AgentGuard guard(group[0]);
  // The other layer has no optimizer.
  Pair pair(group);
  std::vector<RRef<at::Tensor>> parameters(pair.parameters.begin(), pair.parameters.begin() + 2);
  DistributedOptimizer<torch::optim::LBFGS> optimizer(parameters, lbfgs_options());
  torch::optim::LBFGS local(std::vector<at::Tensor>{pair.local[0], pair.local[1]}, lbfgs_options());
  int evaluations = 0, local_evaluations = 0;
  const std::thread::id trainer = std::this_thread::get_id();
  for (int step = 0; step < 3; ++step) {
    at::Tensor loss = optimizer.step([&](const Context& context) {
      EXPECT_EQ(std::this_thread::get_id(), trainer);
      ++evaluations;
      at::Tensor loss = pair.loss(0);
      backward(context, {loss});
      return loss;
    });
    at::Tensor local_loss = local.step([&] {
      ++local_evaluations;
      local.zero_grad();
      at::Tensor loss = pair.local_loss(0);
      loss.backward();
      return loss;
    });
    EXPECT_TRUE(torch::equal(loss, local_loss.detach())) << step;
    ASSERT_TRUE(equal(pair.values(), pair.local)) << step;
  }
  EXPECT_EQ(evaluations, local_evaluations);
  EXPECT_GT(evaluations, 6);
}

TEST(OptimizerSteps, ExceptionOfAClosureIsRethrownAndTheNextStepWorks) {
  Group group(2);
  AgentGuard guard(group[0]);
  RRef<Layer> layer = group[0]->remote<Layer>("worker1", torch::ones({6}));
  DistributedOptimizer<torch::optim::LBFGS> optimizer(layer.rpc_sync<&Layer::parameters>(), lbfgs_options());
  EXPECT_THROW(
      optimizer.step([](const Context&) -> at::Tensor { throw std::out_of_range("no more batches"); }),
      std::out_of_range);
  EXPECT_THAT(message_of(status_of([&] { optimizer.step([](const Context&) { return at::Tensor(); }); })),
              HasSubstr("undefined"));
  optimizer.step([&](const Context& context) {
    at::Tensor loss = layer.rpc_sync<&Layer::forward>(input(0)).pow(2).sum();
    backward(context, {loss});
    return loss;
  });
  EXPECT_FALSE(torch::equal(layer.rpc_sync<&Layer::values>()[0], torch::ones({6})));
}

TEST(OptimizerSteps, ErrorsOfLbfgsSayWhatToDo) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<torch::optim::LBFGS> optimizer(pair.parameters, lbfgs_options());
  {
    Context context;
    const absl::Status status = status_of([&] { optimizer.step(context); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(message_of(status), HasSubstr("step(closure)"));
  }
  const absl::Status status =
      status_of([&] { optimizer.step([&](const Context&) { return torch::zeros({}); }); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr("worker1"), HasSubstr("worker2")));
}

TEST(OptimizerSteps, AnyOptimizerTakesAClosure) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<torch::optim::SGD> optimizer(pair.parameters, sgd_options());
  torch::optim::SGD local(pair.local, sgd_options());
  at::Tensor loss = optimizer.step([&](const Context& context) {
    at::Tensor loss = pair.loss(0);
    backward(context, {loss});
    return loss;
  });
  pair.local_loss(0).backward();
  local.step();
  EXPECT_TRUE(equal(pair.values(), pair.local));
  EXPECT_FALSE(loss.requires_grad());
}

// ---- Errors.

TEST(OptimizerSteps, ErrorOfAStepNamesFunctionWorkerAndWhatTheOthersDid) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<ThrowingOptimizer> optimizer(pair.parameters, CustomOptions());
  Context context;
  backward(context, {pair.layers[1].rpc_sync<&Layer::forward>(input(0)).sum()});
  const absl::Status status = status_of([&] { optimizer.step(context); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(worker_of(status), "worker2");
  EXPECT_THAT(message_of(status),
              AllOf(HasSubstr("DistributedOptimizer<ThrowingOptimizer>::step"), HasSubstr("worker2"),
                    HasSubstr("1 of 2 owners"), HasSubstr("the step fails on purpose")));
}

TEST(OptimizerSteps, InvalidConstructionIsRefusedWithTheReason) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  using Sgd = DistributedOptimizer<torch::optim::SGD>;
  auto refusal = [&](const std::vector<Sgd::Group>& groups, const torch::optim::SGDOptions& options) {
    const absl::Status status = status_of([&] { Sgd optimizer(groups, options); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return message_of(status);
  };
  const torch::optim::SGDOptions options(0.1);
  EXPECT_THAT(refusal({}, options), HasSubstr("needs parameters"));
  EXPECT_THAT(refusal({{.parameters = pair.parameters}, {}}, options),
              HasSubstr("group 1 has no parameters"));
  EXPECT_THAT(refusal({{.parameters = {RRef<at::Tensor>()}}}, options), HasSubstr("empty RRef"));
  EXPECT_THAT(refusal({{.parameters = {RRef<at::Tensor>(at::Tensor())}}}, options), HasSubstr("undefined"));
  EXPECT_THAT(refusal({{.parameters = pair.parameters}, {.parameters = {pair.parameters[3]}}}, options),
              AllOf(HasSubstr("group 1"), HasSubstr("twice"), HasSubstr("worker2")));
  EXPECT_THAT(refusal({{.parameters = pair.parameters}}, torch::optim::SGDOptions(-1)),
              AllOf(HasSubstr("cannot make SGD"), HasSubstr("Invalid learning rate: -1")));
  EXPECT_THAT(message_of(status_of([&] {
                DistributedOptimizer<ThrowingOptimizer> two(
                    {{.parameters = {pair.parameters[0]}}, {.parameters = {pair.parameters[1]}}},
                    CustomOptions());
              })),
              HasSubstr("parameter groups"));
}

TEST(OptimizerSteps, SharedNameWithOtherOptionsIsRefused) {
  Group group(3);
  AgentGuard guard(group[0]);
  Pair pair(group);
  DistributedOptimizer<torch::optim::Adam> first(pair.parameters, adam_options(), {.name = "shared"});
  first.set_learning_rate(0.001);
  DistributedOptimizer<torch::optim::Adam> same(pair.parameters, adam_options(), {.name = "shared"});
  const absl::Status status = status_of([&] {
    DistributedOptimizer<torch::optim::Adam> other(pair.parameters, adam_options().eps(1e-3),
                                                   {.name = "shared"});
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message_of(status), AllOf(HasSubstr("\"shared\""), HasSubstr("other options")));
}

}  // namespace
}  // namespace gradwire::autograd
