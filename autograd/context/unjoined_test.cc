#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gradwire/autograd/optimizer/optimizer_test_util.h"
#include "gradwire/autograd/pass/backward_apart.h"
#include "gradwire/autograd/statistics.h"
#include "gradwire/base/testing/status_of.h"
#include "gtest/gtest.h"

// Tests of forwards that ran outside the Context: a pass cannot reach their graph, and this is reported.
namespace gradwire::autograd {

using at::Tensor;

Tensor twice(const Tensor& x) { return x * 2; }
GRADWIRE_RPC(twice)

// A tensor that a worker keeps between calls.
Tensor& kept() {
  static auto* const tensor = new Tensor;
  return *tensor;
}
void keep(const Tensor& x) { kept() = x; }
GRADWIRE_RPC(keep)
void keep_twice_from(const std::string& worker, const Tensor& x) {
  kept() = rpc::rpc_sync<&twice>(worker, x);
}
GRADWIRE_RPC(keep_twice_from)
Tensor times_kept(const Tensor& x) { return x * kept(); }
GRADWIRE_RPC(times_kept)

namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Sgd = DistributedOptimizer<torch::optim::SGD>;

class Unjoined : public ::testing::Test {
 protected:
  Unjoined() : group_(3), guard_(group_[0]) { kept() = Tensor(); }

  static Tensor leaf() { return at::ones({2}).requires_grad_(); }
  Tensor twice_at(const std::string& worker, const Tensor& x) {
    return group_[0]->rpc_sync<&twice>(worker, x);
  }

  rpc::testing::Group group_;
  rpc::AgentGuard guard_;
};

// Returns the text that `action` writes to standard error.
std::string log_of(const std::function<void()>& action) {
  testing::internal::CaptureStderr();
  action();
  return testing::internal::GetCapturedStderr();
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(Unjoined, ForwardBeforeTheContextWarnsOnceAndNamesTheWorker) {
  const Tensor x = leaf();
  const Tensor y = twice_at("worker1", x);
  const std::string log = log_of([&] {
    for (int step = 0; step < 3; ++step) {
      Context context;
      backward(context, {(y * 3).sum()});
      EXPECT_FALSE(get_gradients(context).contains(x));
    }
  });
  EXPECT_EQ(count(log, "\"worker1\" sent outside every context"), 1) << log;
  EXPECT_THAT(log, HasSubstr("open the Context before the call"));
  EXPECT_EQ(statistics(*group_[0]).unjoined_gradients, 3u);
  const std::string metrics = group_[0]->metrics_text();
  for (const char* line : {"gradwire_autograd_unjoined_gradients_total{worker=\"worker0\"} 3\n",
                           "gradwire_autograd_passes_total{worker=\"worker0\",code=\"OK\"} 3\n",
                           "gradwire_autograd_pass_seconds_count{worker=\"worker0\"} 3\n"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
}

TEST_F(Unjoined, RequireJoinedFailsThePass) {
  const Tensor y = twice_at("worker1", leaf());
  Context context;
  const absl::Status status =
      status_of([&] { backward(context, {(y * 3).sum()}, {.require_joined = true}); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"worker1\" sent outside every context"));
  EXPECT_TRUE(get_gradients(context).empty());
}

TEST_F(Unjoined, TensorThatAnotherWorkerGotOutsideIsNoticedThere) {
  group_[0]->rpc_sync<&keep_twice_from>("worker1", "worker2", leaf());
  Context context;
  const Tensor loss = group_[0]->rpc_sync<&times_kept>("worker1", leaf()).sum();
  const absl::Status status = status_of([&] { backward(context, {loss}, {.require_joined = true}); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(worker_of(status), "worker1") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"worker2\" sent outside every context"));
  EXPECT_EQ(statistics(*group_[1]).unjoined_gradients, 1u);
  EXPECT_EQ(statistics(*group_[0]).unjoined_gradients, 0u);
}

TEST_F(Unjoined, ReferenceFetchedOutsideTheContextIsNoticed) {
  const Tensor y = group_[0]->remote<&twice>("worker1", leaf()).to_here();
  Context context;
  EXPECT_EQ(status_of([&] { backward(context, {y.sum()}, {.require_joined = true}); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(Unjoined, ArgumentOfACallIsALeafLikeAnyOther) {
  group_[0]->rpc_sync<&keep>("worker1", leaf());
  Context context;
  const Tensor x = leaf();
  backward(context, {group_[0]->rpc_sync<&times_kept>("worker1", x).sum()}, {.require_joined = true});
  EXPECT_TRUE(get_gradients(context).contains(x));
  EXPECT_EQ(statistics(*group_[1]).unjoined_gradients, 0u);
}

TEST_F(Unjoined, CallInTheContextIsJoined) {
  Context context;
  const Tensor x = leaf();
  backward(context, {twice_at("worker1", twice_at("worker2", x)).sum()}, {.require_joined = true});
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), at::full({2}, 4.0)));
}

TEST_F(Unjoined, TensorThatIsAskedForOrDetachedIsMeant) {
  const Tensor y = twice_at("worker1", leaf());
  const Tensor own = y.detach().requires_grad_();
  Context context;
  EXPECT_TRUE(
      at::equal(grad(context, {(y * 3).sum()}, {y}, {.require_joined = true})[0], at::full({2}, 3.0)));
  EXPECT_TRUE(at::equal(backward_apart(context, {(y * 3).sum()}, {}, {y})[0], at::full({2}, 3.0)));
  backward(context, {(own * 3).sum()}, {.require_joined = true});
  EXPECT_TRUE(at::equal(get_gradients(context).at(own), at::full({2}, 3.0)));
  EXPECT_EQ(statistics(*group_[0]).unjoined_gradients, 0u);
}

TEST_F(Unjoined, StepWithoutAGradientWarnsOnceAndNamesTheOwner) {
  const auto layer = group_[0]->remote<Layer>("worker2", at::ones({2}));
  const auto before = layer.rpc_sync<&Layer::values>();
  Sgd optimizer(layer.rpc_sync<&Layer::parameters>(), torch::optim::SGDOptions(0.5));
  const Tensor y = layer.rpc_sync<&Layer::forward>(leaf());
  const std::string log = log_of([&] {
    for (int step = 0; step < 3; ++step) {
      Context context;
      backward(context, {y.sum()});
      optimizer.step(context);
    }
  });
  EXPECT_EQ(
      count(log, "got no gradient for parameter 0 of group 0, which worker \"worker2\" owns (and 1 more)"), 1)
      << log;
  EXPECT_EQ(count(log, "::step"), 1) << log;
  const auto after = layer.rpc_sync<&Layer::values>();
  EXPECT_TRUE(at::equal(before[0], after[0]) && at::equal(before[1], after[1]));
}

TEST_F(Unjoined, RequireGradientsFailsTheStepAndChangesNothing) {
  const auto layer = group_[0]->remote<Layer>("worker1", at::ones({2}));
  Sgd optimizer(layer.rpc_sync<&Layer::parameters>(), torch::optim::SGDOptions(0.5),
                {.require_gradients = true});
  const auto before = layer.rpc_sync<&Layer::values>();
  {
    Context context;
    backward(context, {layer.rpc_sync<&Layer::forward_first>(leaf()).sum()});
    const absl::Status status = status_of([&] { optimizer.step(context); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("parameter 1 of group 0, which worker \"worker1\" owns, expected"));
  }
  const auto after = layer.rpc_sync<&Layer::values>();
  EXPECT_TRUE(at::equal(before[0], after[0]) && at::equal(before[1], after[1]));
  Context context;
  backward(context, {layer.rpc_sync<&Layer::forward>(leaf()).sum()});
  EXPECT_EQ(log_of([&] { optimizer.step(context); }), "");
  EXPECT_FALSE(at::equal(layer.rpc_sync<&Layer::values>()[0], after[0]));
}

TEST_F(Unjoined, ParameterIsNamedByItsPlaceAmongThoseOfAllOwners) {
  const auto first = group_[0]->remote<Layer>("worker1", at::ones({2}));
  const auto second = group_[0]->remote<Layer>("worker2", at::ones({2}));
  auto parameters = first.rpc_sync<&Layer::parameters>();
  for (auto& parameter : second.rpc_sync<&Layer::parameters>()) parameters.push_back(parameter);
  Sgd optimizer(parameters, torch::optim::SGDOptions(0.5), {.require_gradients = true});
  Context context;
  backward(context, {first.rpc_sync<&Layer::forward>(leaf()).sum()});
  const absl::Status status = status_of([&] { optimizer.step(context); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("parameter 2 of group 0, which worker \"worker2\" owns"));
}

// No tensor comes back to the caller, so none can carry a mark.
TEST_F(Unjoined, OneWaySendOutsideTheContextIsNoticedByTheOptimizerAlone) {
  const auto layer = group_[0]->remote<Layer>("worker1", at::ones({2}));
  Sgd optimizer(layer.rpc_sync<&Layer::parameters>(), torch::optim::SGDOptions(0.5),
                {.require_gradients = true});
  group_[0]->rpc_sync<&keep>("worker1", leaf());
  Context context;
  backward(context, {group_[0]->rpc_sync<&times_kept>("worker1", leaf()).sum()}, {.require_joined = true});
  EXPECT_EQ(status_of([&] { optimizer.step(context); }).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(Unjoined, GatheredStepNeedsAGradientFromOneTrainerOnly) {
  const auto layer = group_[0]->remote<Layer>("worker1", at::ones({2}));
  const DistributedOptimizerOptions options{
      .consistency = Consistency::kSync, .trainers = 2, .name = "both", .require_gradients = true};
  Sgd optimizer(layer.rpc_sync<&Layer::parameters>(), torch::optim::SGDOptions(0.5), options);
  // The forward of a trainer that is not joined runs outside its context.
  const auto step = [&](bool joined) {
    rpc::AgentGuard guard(group_[0]);
    const Tensor early = layer.rpc_sync<&Layer::forward>(leaf());
    Context context(group_[0]);
    if (joined) {
      backward(context, {layer.rpc_sync<&Layer::forward>(leaf()).sum()});
    } else {
      backward(context, {early.sum()});
    }
    return status_of([&] { optimizer.step(context); });
  };
  for (bool one_is_joined : {true, false}) {
    absl::Status other;
    std::thread trainer([&] { other = step(false); });
    const absl::Status own = step(one_is_joined);
    trainer.join();
    const auto expected = one_is_joined ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition;
    EXPECT_EQ(own.code(), expected) << own;
    EXPECT_EQ(other.code(), expected) << other;
  }
}

}  // namespace
}  // namespace gradwire::autograd
