#include <ATen/ATen.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/checkpoint.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/testing/group.h"
#include "gtest/gtest.h"

// Tests of passes that are differentiated themselves (create_graph), that run parts of the forward again
// (checkpoint()), or that find the source of a NaN (anomaly mode).
namespace gradwire::autograd {

using at::Tensor;
using rpc::RRef;

class Curve {
 public:
  explicit Curve(const Tensor& weight) : weight_(weight.detach().clone().set_requires_grad(true)) {}

  Tensor forward(const Tensor& x) {
    ++calls_;
    return (x * weight_).sin() * x;
  }
  Tensor through(const Tensor& x, const RRef<Curve>& next) {
    return next.rpc_sync<&Curve::forward>(forward(x)) * weight_;
  }
  // Same as forward(), in a checkpoint.
  Tensor recomputed(const Tensor& x) {
    return checkpoint([this](const std::vector<Tensor>& in) { return std::vector{forward(in[0])}; }, {x})[0];
  }
  Tensor recomputed_through(const Tensor& x, const RRef<Curve>& next) {
    return checkpoint(
        [this, next](const std::vector<Tensor>& in) { return std::vector{through(in[0], next)}; }, {x})[0];
  }
  // Makes more nodes than RouteTracer follows.
  Tensor long_way(const Tensor& x) {
    Tensor y = x * weight_;
    for (int i = 0; i < 300; ++i) y = y + 1;
    return y;
  }
  Tensor root(const Tensor& x) { return (x * weight_).sqrt(); }
  int64_t calls() { return calls_; }
  Tensor gradient(int64_t context) { return get_gradients(context).at(weight_).detach(); }

 private:
  const Tensor weight_;
  std::atomic<int64_t> calls_{0};
};
GRADWIRE_RPC_CLASS(Curve, Tensor)
GRADWIRE_RPC_METHOD(Curve, forward)
GRADWIRE_RPC_METHOD(Curve, through)
GRADWIRE_RPC_METHOD(Curve, recomputed)
GRADWIRE_RPC_METHOD(Curve, recomputed_through)
GRADWIRE_RPC_METHOD(Curve, long_way)
GRADWIRE_RPC_METHOD(Curve, root)
GRADWIRE_RPC_METHOD(Curve, calls)
GRADWIRE_RPC_METHOD(Curve, gradient)

namespace {

using ::testing::HasSubstr;

Tensor leaf(std::initializer_list<double> values) {
  return at::tensor(values, at::kDouble).set_requires_grad(true);
}

class GradientGraph : public ::testing::Test {
 protected:
  GradientGraph() : group_(3), guard_(group_[0]) {
    for (int i = 1; i < 3; ++i) {
      weights_.push_back(at::tensor({0.5 * i, 1.5}, at::kDouble).set_requires_grad(true));
      curves_.push_back(group_[0]->remote<Curve>("worker" + std::to_string(i), weights_.back()));
    }
  }
  Tensor forward_here(const Tensor& x, int curve = 0) const { return (x * weights_[curve]).sin() * x; }
  Tensor through_here(const Tensor& x) const { return forward_here(forward_here(x), 1) * weights_[0]; }
  Tensor gradient(int curve, const Context& context) {
    return curves_[curve].rpc_sync<&Curve::gradient>(context.id());
  }

  rpc::testing::Group group_;
  rpc::AgentGuard guard_;
  std::vector<Tensor> weights_;
  std::vector<RRef<Curve>> curves_;
};

TEST_F(GradientGraph, PenaltyOnTheGradientIsThatOfOneProcess) {
  Tensor x = leaf({0.25, -1}), own = leaf({0.25, -1});
  Context context;
  Tensor y = curves_[0].rpc_sync<&Curve::forward>(x);
  Tensor slope = grad(context, {y.sum()}, {x}, {.create_graph = true})[0];
  EXPECT_TRUE(get_gradients(context).empty()) << "grad() left something in the context";
  backward(context, {slope.square().sum() + y.sum()});

  Tensor y_here = forward_here(own);
  Tensor slope_here = torch::autograd::grad({y_here.sum()}, {own}, {}, true, true)[0];
  (slope_here.square().sum() + y_here.sum()).backward();
  EXPECT_TRUE(at::allclose(slope, slope_here));
  EXPECT_TRUE(at::allclose(get_gradients(context).at(x), own.grad()));
  EXPECT_TRUE(at::allclose(gradient(0, context), weights_[0].grad()));
}

TEST_F(GradientGraph, ThirdDerivativeOverTwoWorkers) {
  Tensor x = leaf({0.25, -1}), own = leaf({0.25, -1});
  Context context;
  Tensor derivative = curves_[0].rpc_sync<&Curve::through>(x, curves_[1]);
  Tensor here = through_here(own);
  for (int order = 0; order < 3; ++order) {
    derivative = grad(context, {derivative.sum()}, {x}, {.create_graph = true})[0];
    here = torch::autograd::grad({here.sum()}, {own}, {}, true, true)[0];
    EXPECT_TRUE(at::allclose(derivative, here)) << "order " << order + 1;
  }
  backward(context, {derivative.sum()});
  here.sum().backward();
  EXPECT_TRUE(at::allclose(get_gradients(context).at(x), own.grad()));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(gradient(i, context), weights_[i].grad())) << i;
}

TEST_F(GradientGraph, GraphTooLargeForATraceTakesTheWave) {
  Tensor x = leaf({0.25, -1});
  Context context;
  Tensor unused = curves_[1].rpc_sync<&Curve::forward>(x);
  Tensor y = curves_[0].rpc_sync<&Curve::long_way>(curves_[1].rpc_sync<&Curve::forward>(x));
  backward(context, {y.sum()});
  Tensor own = leaf({0.25, -1});
  (forward_here(own, 1) * weights_[0]).sum().backward();
  EXPECT_TRUE(at::allclose(get_gradients(context).at(x), own.grad()));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(gradient(i, context), weights_[i].grad())) << i;
}

TEST_F(GradientGraph, CheckpointInAHandlerRunsTwiceAndGivesTheSame) {
  Tensor x = leaf({0.25, -1}), own = leaf({0.25, -1});
  Context context;
  Tensor y = curves_[0].rpc_sync<&Curve::recomputed>(x);
  EXPECT_EQ(curves_[0].rpc_sync<&Curve::calls>(), 1);
  backward(context, {y.sum()});
  EXPECT_EQ(curves_[0].rpc_sync<&Curve::calls>(), 2);
  forward_here(own).sum().backward();
  EXPECT_TRUE(at::equal(y, forward_here(own)));
  EXPECT_TRUE(at::allclose(get_gradients(context).at(x), own.grad()));
  EXPECT_EQ(get_gradients(context).size(), 1u) << "the copies that were run again left gradients";
  EXPECT_TRUE(at::allclose(gradient(0, context), weights_[0].grad()));
}

TEST_F(GradientGraph, CheckpointAroundACallCallsAgain) {
  Tensor x = leaf({0.25, -1}), own = leaf({0.25, -1});
  Context context;
  Tensor y = curves_[0].rpc_sync<&Curve::recomputed_through>(x, curves_[1]);
  backward(context, {y.sum()}, {.timeout = absl::Seconds(30)});
  EXPECT_EQ(curves_[1].rpc_sync<&Curve::calls>(), 2);
  through_here(own).sum().backward();
  EXPECT_TRUE(at::allclose(get_gradients(context).at(x), own.grad()));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(gradient(i, context), weights_[i].grad())) << i;
}

TEST_F(GradientGraph, CheckpointWorksUnderLibtorchsOwnBackward) {
  Tensor x = leaf({0.25, -1}), own = leaf({0.25, -1});
  Tensor y =
      checkpoint([this](const std::vector<Tensor>& in) { return std::vector{forward_here(in[0])}; }, {x})[0];
  y.sum().backward();
  const Tensor weight_gradient = weights_[0].grad().clone();
  weights_[0].mutable_grad() = Tensor();
  forward_here(own).sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), own.grad()));
  EXPECT_TRUE(at::allclose(weight_gradient, weights_[0].grad()));
}

TEST_F(GradientGraph, AnomalyModeNamesTheWorkerTheNodeAndItsForwardStack) {
  Tensor x = leaf({-1, 0});
  torch::autograd::DetectAnomalyGuard anomaly;
  Context context;
  Tensor y = curves_[0].rpc_sync<&Curve::root>(x);
  try {
    backward(context, {y.sum()});
    FAIL() << "a NaN gradient was not reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.worker(), "worker1");
    EXPECT_THAT(error.what(), HasSubstr("in the backward of SqrtBackward0"));
    EXPECT_THAT(error.what(), HasSubstr("nan"));
    EXPECT_THAT(error.what(), HasSubstr("root")) << "the stack of the forward";
  }
}

TEST_F(GradientGraph, RetainedGradientOfATensorInTwoContextsIsTheSumOfBoth) {
  Tensor x = leaf({0.25, -1});
  Tensor middle = x * 2;
  middle.retain_grad();
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      rpc::AgentGuard guard(group_[0]);
      for (int round = 0; round < 20; ++round) {
        Context context;
        backward(context, {curves_[i].rpc_sync<&Curve::long_way>(middle).sum()}, {.retain_graph = true});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(at::allclose(middle.grad(), 20 * (weights_[0] + weights_[1]).detach()));
}

}  // namespace
}  // namespace gradwire::autograd
