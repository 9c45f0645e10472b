#include <ATen/ATen.h>

#include <atomic>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/testing/group.h"
#include "gtest/gtest.h"

// Tests of backward() with `inputs`, which computes and sends only what the gradients of the inputs depend
// on; and of RRef::backward().
namespace gradwire::autograd {

using at::Tensor;
using rpc::RRef;

// The part of a worker: y = sin(x * weight), with a counter of the gradients that pass.
class Part {
 public:
  explicit Part(const Tensor& weight) : weight_(weight.detach().clone().set_requires_grad(true)) {}

  Tensor forward(const Tensor& x) {
    Tensor y = (x * weight_).sin();
    y.register_hook([this](const Tensor&) { ++gradients_; });
    return y;
  }
  // Computes through the next worker and back.
  Tensor through(const Tensor& x, const RRef<Part>& next) {
    return next.rpc_sync<&Part::forward>(forward(x)) * weight_;
  }
  RRef<Tensor> weight() { return RRef<Tensor>(weight_); }
  // Computes a loss that stays on this worker.
  RRef<Tensor> loss(const Tensor& x) { return RRef<Tensor>(forward(x).sum()); }
  int64_t gradients() { return gradients_; }
  // Returns an undefined tensor if the context has no gradient.
  std::vector<Tensor> gradient(int64_t context) {
    const Gradients gradients = get_gradients(context);
    const Tensor* gradient = gradients.find(weight_);
    return gradient == nullptr ? std::vector<Tensor>() : std::vector<Tensor>{*gradient};
  }

 private:
  const Tensor weight_;
  std::atomic<int64_t> gradients_{0};
};
GRADWIRE_RPC_CLASS(Part, Tensor)
GRADWIRE_RPC_METHOD(Part, forward)
GRADWIRE_RPC_METHOD(Part, through)
GRADWIRE_RPC_METHOD(Part, weight)
GRADWIRE_RPC_METHOD(Part, loss)
GRADWIRE_RPC_METHOD(Part, gradients)
GRADWIRE_RPC_METHOD(Part, gradient)

RRef<Tensor> constant() { return RRef<Tensor>(at::ones({2})); }
GRADWIRE_RPC(constant)

namespace {

using ::testing::HasSubstr;

Tensor input_leaf(std::initializer_list<double> values) {
  return at::tensor(values, at::kDouble).set_requires_grad(true);
}

class Inputs : public ::testing::Test {
 protected:
  Inputs() : group_(3), guard_(group_[0]) {
    for (int i = 1; i < 3; ++i) {
      weights_.push_back(at::tensor({0.5 * i, 1.5}, at::kDouble));
      parts_.push_back(group_[0]->remote<Part>("worker" + std::to_string(i), weights_.back()));
      references_.push_back(parts_.back().rpc_sync<&Part::weight>());
    }
  }
  // Computes sin(x w1) w1' + sin(x w2); each sine is computed on another worker.
  Tensor two_branches(const Tensor& x) {
    return (parts_[0].rpc_sync<&Part::forward>(x) + parts_[1].rpc_sync<&Part::forward>(x)).sum();
  }
  bool has_gradient(int part, const Context& context) {
    return !parts_[part].rpc_sync<&Part::gradient>(context.id()).empty();
  }

  rpc::testing::Group group_;
  rpc::AgentGuard guard_;
  std::vector<Tensor> weights_;
  std::vector<RRef<Part>> parts_;
  std::vector<RRef<Tensor>> references_;
};

TEST_F(Inputs, OnlyTheBranchOfARemoteWeightIsComputed) {
  Tensor x = input_leaf({0.25, -1});
  Context context;
  backward(context, {two_branches(x)}, {.inputs = {references_[0]}});
  const std::vector<Tensor> gradient = parts_[0].rpc_sync<&Part::gradient>(context.id());
  ASSERT_EQ(gradient.size(), 1u);
  const Tensor plain = x.detach();
  EXPECT_TRUE(at::equal(gradient[0], plain * (plain * weights_[0]).cos()));
  EXPECT_FALSE(has_gradient(1, context));
  EXPECT_FALSE(get_gradients(context).contains(x));
  EXPECT_EQ(parts_[0].rpc_sync<&Part::gradients>(), 1);
  EXPECT_EQ(parts_[1].rpc_sync<&Part::gradients>(), 0);
}

TEST_F(Inputs, LocalLeafIsReachedThroughWorkersWhoseLeavesGetNoGradient) {
  Tensor x = input_leaf({0.25, -1});
  Context context;
  backward(context, {two_branches(x)}, {.inputs = {x}});
  const Tensor plain = x.detach();
  const Tensor expected =
      (plain * weights_[0]).cos() * weights_[0] + (plain * weights_[1]).cos() * weights_[1];
  EXPECT_TRUE(at::allclose(get_gradients(context).at(x), expected));
  EXPECT_FALSE(has_gradient(0, context));
  EXPECT_FALSE(has_gradient(1, context));
}

TEST_F(Inputs, ReceivedTensorAsInputStopsThePassThere) {
  Tensor x = input_leaf({0.25, -1});
  Context context;
  Tensor y = parts_[0].rpc_sync<&Part::forward>(x);
  backward(context, {(y * y).sum()}, {.inputs = {y}});
  EXPECT_TRUE(at::equal(get_gradients(context).at(y), 2 * y.detach()));
  EXPECT_EQ(parts_[0].rpc_sync<&Part::gradients>(), 0) << "a gradient was shipped that was not requested";
}

TEST_F(Inputs, GraphThatCrossesAWorkerTwiceIsFollowedBackAndForth) {
  Tensor x = input_leaf({0.25, -1});
  for (int chosen = 0; chosen < 2; ++chosen) {
    Context context;
    Tensor y = parts_[0].rpc_sync<&Part::through>(x, parts_[1]);
    backward(context, {y.sum()}, {.inputs = {references_[chosen], x}});
    Tensor own = x.detach().clone().set_requires_grad(true);
    Tensor w1 = weights_[0].clone().set_requires_grad(true), w2 = weights_[1].clone().set_requires_grad(true);
    (((own * w1).sin() * w2).sin() * w1).sum().backward();
    EXPECT_TRUE(at::allclose(get_gradients(context).at(x), own.grad()));
    const std::vector<Tensor> gradient = parts_[chosen].rpc_sync<&Part::gradient>(context.id());
    ASSERT_EQ(gradient.size(), 1u);
    EXPECT_TRUE(at::allclose(gradient[0], chosen == 0 ? w1.grad() : w2.grad()));
    EXPECT_FALSE(has_gradient(1 - chosen, context));
  }
}

TEST_F(Inputs, InputThatTheRootDoesNotDependOnGetsNoGradient) {
  Tensor x = input_leaf({0.25, -1}), other = input_leaf({1, 1});
  Context context;
  Tensor y = parts_[0].rpc_sync<&Part::forward>(x).sum();
  backward(context, {y}, {.retain_graph = true, .inputs = {other, references_[1]}});
  EXPECT_TRUE(get_gradients(context).empty());
  EXPECT_FALSE(has_gradient(1, context));
  EXPECT_EQ(parts_[0].rpc_sync<&Part::gradients>(), 0);
  // The graph can still be used.
  backward(context, {y});
  EXPECT_TRUE(get_gradients(context).contains(x));
}

TEST_F(Inputs, ErrorsNameTheWorkerAndWhatToDo) {
  Tensor x = input_leaf({0.25, -1});
  Context context;
  Tensor y = parts_[0].rpc_sync<&Part::forward>(x).sum();
  const auto error_of = [&](const BackwardOptions& options) {
    try {
      backward(context, {y}, options);
    } catch (const Error& error) {
      return error;
    }
    return Error(absl::OkStatus());
  };
  const Error elsewhere = error_of({.inputs = {group_[0]->rpc_sync<&constant>("worker2")}});
  EXPECT_EQ(elsewhere.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(elsewhere.worker(), "worker2");
  EXPECT_THAT(elsewhere.what(), HasSubstr("does not require grad"));
  // The context stays usable.
  backward(context, {y}, {.inputs = {x}});
  EXPECT_TRUE(get_gradients(context).contains(x));
}

TEST_F(Inputs, BackwardFromAReferenceRunsAtItsOwner) {
  Tensor x = input_leaf({0.25, -1});
  Context context;
  RRef<Tensor> loss = parts_[0].rpc_sync<&Part::loss>(x);
  EXPECT_FALSE(loss.is_owner());
  loss.backward(context, /*retain_graph=*/true);
  const Tensor once = get_gradients(context).at(x).clone();
  EXPECT_TRUE(at::equal(once, weights_[0] * (x.detach() * weights_[0]).cos()));
  EXPECT_TRUE(has_gradient(0, context));
  loss.backward(context.id());
  EXPECT_TRUE(at::equal(get_gradients(context).at(x), 2 * once));
  RRef<Tensor> own((x * x).sum());
  own.backward(context);
  EXPECT_TRUE(at::allclose(get_gradients(context).at(x), 2 * once + 2 * x.detach()));
  EXPECT_THROW(own.backward(context.id() + 1), Error);
}

}  // namespace
}  // namespace gradwire::autograd
