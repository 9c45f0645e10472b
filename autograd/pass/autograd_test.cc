#include "gradwire/autograd/autograd.h"

#include <torch/torch.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/error.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/testing/group.h"
#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

using rpc::Agent;
using rpc::AgentGuard;
using rpc::RRef;
using rpc::testing::Group;
using ::testing::HasSubstr;
using torch::Tensor;

// A parameter on a worker, with the functions of the tests.
class Layer {
 public:
  explicit Layer(const Tensor& weight) : weight_(weight.detach().clone().requires_grad_()) {}

  Tensor forward(const Tensor& x) { return (x * weight_).sin(); }
  // Returns a result with a hook that throws in the backward.
  Tensor broken(const Tensor& x) {
    Tensor y = x * weight_;
    y.register_hook([](Tensor) { throw std::runtime_error("the hook broke"); });
    return y;
  }
  std::pair<Tensor, Tensor> two(const Tensor& x) {
    Tensor second = x.cos() * weight_;
    second.register_hook([this](Tensor) { ++second_hooks_; });
    return {x * weight_, second};
  }
  int64_t second_hooks() { return second_hooks_; }
  // Throws NotFound if the context or the gradient is unknown.
  Tensor gradient(int64_t context) { return get_gradients(context).at(weight_); }
  bool has_gradient(int64_t context) { return get_gradients(context).contains(weight_); }
  // Calls the next worker, which calls back, for the given number of hops.
  Tensor chain(const Tensor& x, const RRef<Layer>& next, int64_t hops) {
    Tensor y = (x * weight_).sin();
    if (hops == 0) return y;
    return next.rpc_sync<&Layer::relay>(y, next, hops);
  }
  Tensor relay(const Tensor& x, const RRef<Layer>& self, int64_t hops) { return x * weight_ + hops; }
  // Same as above, with an additional call at every hop whose result is not used.
  Tensor chain_with_unused(const Tensor& x, const std::vector<RRef<Layer>>& rest) {
    Tensor y = (x * weight_).sin();
    if (rest.empty()) return y;
    Tensor unused = rest[0].rpc_sync<&Layer::forward>(y);
    return rest[0].rpc_sync<&Layer::chain_with_unused>(
        y, std::vector<RRef<Layer>>(rest.begin() + 1, rest.end()));
  }

  Tensor weight_;
  std::atomic<int64_t> second_hooks_{0};
};

}  // namespace
}  // namespace gradwire::autograd

namespace gradwire::autograd {
namespace {

GRADWIRE_RPC_CLASS(Layer, Tensor)
GRADWIRE_RPC_METHOD(Layer, forward)
GRADWIRE_RPC_METHOD(Layer, broken)
GRADWIRE_RPC_METHOD(Layer, two)
GRADWIRE_RPC_METHOD(Layer, second_hooks)
GRADWIRE_RPC_METHOD(Layer, gradient)
GRADWIRE_RPC_METHOD(Layer, has_gradient)
GRADWIRE_RPC_METHOD(Layer, chain)
GRADWIRE_RPC_METHOD(Layer, relay)
GRADWIRE_RPC_METHOD(Layer, chain_with_unused)

Tensor identity(const Tensor& x) { return x; }
GRADWIRE_RPC(identity)

// Calls worker `rest[0]` with the rest of the list, and combines the answer with its own result. This makes
// graphs like A -> B -> A -> B.
Tensor ping_pong(const Tensor& x, const std::vector<std::string>& rest) {
  Tensor y = (x * 1.5).sin();
  if (rest.empty()) return y;
  Tensor z = Agent::current()->rpc_sync<&ping_pong>(rest[0], y,
                                                    std::vector<std::string>(rest.begin() + 1, rest.end()));
  return y * z + x;
}
GRADWIRE_RPC(ping_pong)

Tensor ping_pong_here(const Tensor& x, std::size_t rest) {
  Tensor y = (x * 1.5).sin();
  if (rest == 0) return y;
  return y * ping_pong_here(y, rest - 1) + x;
}

std::string open_another_context() {
  try {
    Context context;
    return "opened";
  } catch (const Error& error) {
    return std::string(error.status().message());
  }
}
GRADWIRE_RPC(open_another_context)

int64_t context_here() { return current_context_id().value_or(0); }
GRADWIRE_RPC(context_here)

Tensor slow(const Tensor& x) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return x;
}
GRADWIRE_RPC(slow)

void expect_no_contexts(const Group& group) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    Engine& engine = *Engine::of(*group[rank]).value();
    while ((engine.contexts().size() > 0 || !engine.idle()) && absl::Now() < deadline)
      std::this_thread::yield();
    EXPECT_EQ(engine.contexts().size(), 0u) << "worker" << rank;
    EXPECT_EQ(engine.barrier().forwarding(), 0u) << "worker" << rank;
  }
}

class Backward : public ::testing::TestWithParam<BackwardMode> {
 protected:
  BackwardOptions options() const { return {.mode = GetParam(), .timeout = absl::Seconds(30)}; }
};

INSTANTIATE_TEST_SUITE_P(Modes, Backward, ::testing::Values(BackwardMode::kSmart, BackwardMode::kFast),
                         [](const auto& info) {
                           return info.param == BackwardMode::kSmart ? "Smart" : "Fast";
                         });

TEST_P(Backward, GradientsOnBothSidesAreThoseOfOneProcess) {
  Group group(2);
  AgentGuard guard(group[0]);
  torch::manual_seed(1);
  Tensor x = torch::randn({4}).requires_grad_(), w = torch::randn({4}).requires_grad_();
  {
    RRef<Layer> layer = group[0]->remote<Layer>("worker1", w);
    Context context;
    Tensor loss = layer.rpc_sync<&Layer::forward>(x).pow(2).sum();
    backward(context, {loss}, options());
    (x * w).sin().pow(2).sum().backward();
    EXPECT_TRUE(torch::equal(get_gradients(context).at(x), x.grad()));
    EXPECT_TRUE(torch::equal(layer.rpc_sync<&Layer::gradient>(context.id()), w.grad()));
  }
  expect_no_contexts(group);
}

TEST_P(Backward, GraphThatGoesBackAndForthIsFollowed) {
  Group group(2);
  AgentGuard guard(group[0]);
  Tensor x = torch::randn({5}).requires_grad_();
  for (std::size_t hops = 1; hops <= 6; ++hops) {
    x.mutable_grad() = Tensor();
    Context context;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < hops; ++i) names.push_back(i % 2 == 0 ? "worker1" : "worker0");
    Tensor loss = ping_pong(x, names).sum();
    backward(context, {loss}, options());
    ping_pong_here(x, hops).sum().backward();
    // From two hops on some tensors have three uses, so the order of additions matters.
    EXPECT_TRUE(torch::allclose(get_gradients(context).at(x), x.grad(), 1e-6, 1e-6)) << hops;
  }
  expect_no_contexts(group);
}

TEST_P(Backward, CallsToOneselfShareNoHistoryByAccident) {
  Group group(1);
  AgentGuard guard(group[0]);
  Tensor x = torch::randn({3}).requires_grad_();
  Context context;
  Tensor y = group[0]->rpc_sync<&identity>("worker0", x);
  EXPECT_EQ(x.grad_fn(), nullptr);
  EXPECT_NE(y.unsafeGetTensorImpl(), x.unsafeGetTensorImpl());
  EXPECT_EQ(y.grad_fn()->name(), "GradwireRecv");
  backward(context, {(y * y).sum()}, options());
  EXPECT_TRUE(torch::equal(get_gradients(context).at(x), 2 * x.detach()));
  EXPECT_FALSE(x.grad().defined());
}

TEST_P(Backward, RetainedGraphGivesTheSameAgainAndAddsUp) {
  Group group(2);
  AgentGuard guard(group[0]);
  Tensor x = torch::ones({3}).requires_grad_();
  RRef<Layer> layer = group[0]->remote<Layer>("worker1", torch::full({3}, 2.0));
  Context context;
  Tensor loss = layer.rpc_sync<&Layer::forward>(x).sum();
  BackwardOptions retain = options();
  retain.retain_graph = true;
  backward(context, {loss}, retain);
  const Tensor once = get_gradients(context).at(x).clone();
  const Tensor there = layer.rpc_sync<&Layer::gradient>(context.id());
  backward(context, {loss}, options());
  EXPECT_TRUE(torch::equal(get_gradients(context).at(x), 2 * once));
  EXPECT_TRUE(torch::equal(layer.rpc_sync<&Layer::gradient>(context.id()), 2 * there));
  EXPECT_EQ(status_of([&] { backward(context, {loss}, options()); }).code(), absl::StatusCode::kUnknown);
}

TEST_P(Backward, ErrorInANodeKeepsMessageAndWorker) {
  Group group(3);
  AgentGuard guard(group[0]);
  Tensor x = torch::ones({3}).requires_grad_();
  RRef<Layer> first = group[0]->remote<Layer>("worker1", torch::ones({3}));
  RRef<Layer> second = group[0]->remote<Layer>("worker2", torch::ones({3}));
  Context context;
  Tensor y = second.rpc_sync<&Layer::broken>(first.rpc_sync<&Layer::forward>(x));
  const absl::Status status = status_of([&] { backward(context, {y.sum()}, options()); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the hook broke"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("MulBackward0"));
  EXPECT_EQ(worker_of(status), "worker2");
  // The context remains usable.
  Tensor again = first.rpc_sync<&Layer::forward>(x);
  if (GetParam() == BackwardMode::kSmart) backward(context, {again.sum()}, options());
}

TEST_P(Backward, WorkerLostDuringThePassIsNamed) {
  Group group(3);
  AgentGuard guard(group[0]);
  Tensor x = torch::ones({3}).requires_grad_();
  Context context;
  Tensor y = group[0]->rpc_sync<&ping_pong>("worker1", x, std::vector<std::string>{"worker2"});
  group.kill(2);
  const absl::Time begun = absl::Now();
  const absl::Status status = status_of([&] { backward(context, {y.sum()}, options()); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker2"));
  EXPECT_LT(absl::Now() - begun, absl::Seconds(25));
}

TEST(Autograd, UnusedResultDoesNotStopBackward) {
  Group group(4);
  AgentGuard guard(group[0]);
  Tensor x = torch::ones({3}).requires_grad_(), w = torch::full({3}, 0.7);
  {
    std::vector<RRef<Layer>> layers;
    for (int i = 1; i <= 3; ++i) layers.push_back(group[0]->remote<Layer>(i, w));
    Context context;
    // There are three hops, each with a call whose result is not used.
    Tensor unused = layers[0].rpc_sync<&Layer::forward>(x);
    Tensor loss = layers[0]
                      .rpc_sync<&Layer::chain_with_unused>(
                          x, std::vector<RRef<Layer>>(layers.begin() + 1, layers.end()))
                      .sum();
    backward(context, {loss}, {.timeout = absl::Seconds(30)});
    Tensor y = x;
    for (int i = 0; i < 3; ++i) y = (y * w).sin();
    y.sum().backward();
    EXPECT_TRUE(torch::equal(get_gradients(context).at(x), x.grad()));
  }
  expect_no_contexts(group);
}

TEST(Autograd, FastModeTimesOutOnAnUnusedResult) {
  Group group(2);
  AgentGuard guard(group[0]);
  Tensor x = torch::ones({3}).requires_grad_();
  RRef<Layer> layer = group[0]->remote<Layer>("worker1", torch::ones({3}));
  Context context;
  Tensor unused = layer.rpc_sync<&Layer::forward>(x);
  Tensor used = layer.rpc_sync<&Layer::forward>(x);
  EXPECT_EQ(status_of([&] {
              backward(context, {used.sum()},
                       {.mode = BackwardMode::kFast, .timeout = absl::Milliseconds(300)});
            }).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(Autograd, OnlyTheUsedTensorsOfAMessageAreWalked) {
  Group group(2);
  AgentGuard guard(group[0]);
  Tensor x = torch::randn({3}).requires_grad_(), w = torch::randn({3}).requires_grad_();
  RRef<Layer> layer = group[0]->remote<Layer>("worker1", w);
  Context context;
  auto [first, second] = layer.rpc_sync<&Layer::two>(x);
  backward(context, {first.sum()}, {.timeout = absl::Seconds(30)});
  EXPECT_TRUE(torch::equal(get_gradients(context).at(x), w.detach()));
  EXPECT_TRUE(torch::equal(layer.rpc_sync<&Layer::gradient>(context.id()), x.detach()));
  EXPECT_EQ(layer.rpc_sync<&Layer::second_hooks>(), 0);
  // The graph of the other tensor remains for another pass.
  backward(context, {second.sum()}, {.timeout = absl::Seconds(30)});
  EXPECT_EQ(layer.rpc_sync<&Layer::second_hooks>(), 1);
  EXPECT_TRUE(torch::allclose(get_gradients(context).at(x), (w - w * x.sin()).detach()));
}

TEST(Autograd, ConcurrentContextsAreIndependent) {
  Group group(3);
  {
    RRef<Layer> layers[2] = {group[0]->remote<Layer>("worker1", torch::full({4}, 0.3)),
                             group[0]->remote<Layer>("worker2", torch::full({4}, 0.6))};
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        AgentGuard guard(group[0]);
        for (int step = 0; step < 10; ++step) {
          Tensor x = torch::full({4}, 0.1 * t + 0.01 * step).requires_grad_();
          Context context;
          Tensor y = layers[t % 2].rpc_sync<&Layer::forward>(x);
          y = layers[(t + 1) % 2].rpc_sync<&Layer::forward>(y);
          backward(context, {y.sum()},
                   {.mode = step % 2 == 0 ? BackwardMode::kSmart : BackwardMode::kFast,
                    .timeout = absl::Seconds(30)});
          const double w[2] = {0.3, 0.6};
          Tensor w0 = torch::full({4}, w[t % 2]).requires_grad_();
          ((x * w0).sin() * w[(t + 1) % 2]).sin().sum().backward();
          if (!torch::allclose(get_gradients(context).at(x), x.grad())) ++wrong;
          if (!torch::allclose(layers[t % 2].rpc_sync<&Layer::gradient>(context.id()), w0.grad())) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
  expect_no_contexts(group);
}

// Opens contexts inside one another, each on a thread of its own, and makes a call in each.
void call_in_contexts(const std::shared_ptr<Agent>& agent, int depth, std::vector<absl::Status>& results) {
  std::thread([&] {
    AgentGuard guard(agent);
    Context context;
    results.push_back(status_of(
        [&] { (void)agent->rpc_sync<&identity>("worker1", torch::ones({2}, torch::requires_grad())); }));
    if (depth > 1) call_in_contexts(agent, depth - 1, results);
  }).join();
}

TEST(Autograd, ACallerOpensOnlySoManyContexts) {
  rpc::RpcBackendOptions options;
  options.caller_limits.max_contexts = 2;
  Group group(2, options);
  std::vector<absl::Status> results;
  call_in_contexts(group[0], 4, results);
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0], absl::OkStatus());
  EXPECT_EQ(results[1], absl::OkStatus());
  for (const absl::Status& refused : {results[2], results[3]}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("caller_limits.max_contexts"));
  }
  EXPECT_GE(group[1]->statistics().calls_over_limit, 2u);
  // The contexts have ended, so there is room again.
  Engine* const engine = *Engine::of(*group[1]);
  EXPECT_TRUE(eventually([&] { return engine->contexts().size() == 0; }));
  results.clear();
  call_in_contexts(group[0], 2, results);
  EXPECT_EQ(results, std::vector<absl::Status>(2, absl::OkStatus()));
}

TEST(Autograd, NoGradModePlantsNothing) {
  Group group(2);
  AgentGuard guard(group[0]);
  Tensor x = torch::ones({3}).requires_grad_();
  Context context;
  Tensor y;
  {
    torch::NoGradGuard no_grad;
    y = group[0]->rpc_sync<&identity>("worker1", x);
  }
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(status_of([&] { backward(context, {y.sum()}); }).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Autograd, ContextReachesHandlersAndEndsWithItsObject) {
  Group group(2);
  AgentGuard guard(group[0]);
  int64_t id;
  RRef<Layer> layer = group[0]->remote<Layer>("worker1", torch::ones({3}));
  EXPECT_EQ(group[0]->rpc_sync<&context_here>("worker1"), 0);
  {
    Context context;
    id = context.id();
    EXPECT_EQ(current_context_id(), id);
    EXPECT_EQ(group[0]->rpc_sync<&context_here>("worker1"), id);
    EXPECT_THAT(group[0]->rpc_sync<&open_another_context>("worker1"),
                HasSubstr(rpc::to_string(context.full_id())));
    EXPECT_EQ(status_of([] { Context another; }).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_FALSE(layer.rpc_sync<&Layer::has_gradient>(id));
  }
  EXPECT_EQ(current_context_id(), std::nullopt);
  EXPECT_EQ(group[0]->rpc_sync<&context_here>("worker1"), 0);
  expect_no_contexts(group);
  EXPECT_EQ(status_of([&] { get_gradients(id); }).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status_of([&] { layer.rpc_sync<&Layer::gradient>(id); }).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status_of([&] { backward(id, {torch::ones({}).requires_grad_()}); }).code(),
            absl::StatusCode::kNotFound);
}

TEST(Autograd, InvalidRootsAreRefused) {
  Group group(1);
  AgentGuard guard(group[0]);
  Context context;
  Tensor x = torch::ones({3}).requires_grad_();
  using Code = absl::StatusCode;
  EXPECT_EQ(status_of([&] { backward(context, {}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(status_of([&] { backward(context, {Tensor()}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(status_of([&] { backward(context, {x}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(status_of([&] { backward(context, {torch::ones({})}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(status_of([&] { backward(context, {x}, {.grad_roots = {torch::ones({2})}}); }).code(),
            Code::kInvalidArgument);
  backward(context, {x}, {.grad_roots = {torch::full({3}, 5.0)}});
  EXPECT_TRUE(torch::equal(get_gradients(context).at(x), torch::full({3}, 5.0)));
}

TEST(Autograd, TensorOfAnotherContextIsRefusedNamingBoth) {
  Group group(2);
  AgentGuard guard(group[0]);
  Tensor x = torch::ones({3}).requires_grad_();
  Tensor received;
  rpc::Id first;
  {
    Context context;
    first = context.full_id();
    received = group[0]->rpc_sync<&identity>("worker1", x);
  }
  Context context;
  const absl::Status status = status_of([&] { backward(context, {received.sum()}); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(rpc::to_string(first)));
  EXPECT_THAT(std::string(status.message()), HasSubstr(rpc::to_string(context.full_id())));
  EXPECT_ANY_THROW(received.sum().backward());
}

TEST(Autograd, OnlyGradientsOfInputsAreKept) {
  Group group(2);
  AgentGuard guard(group[0]);
  Tensor x = torch::randn({3}).requires_grad_(), other = torch::randn({3}).requires_grad_();
  RRef<Layer> layer = group[0]->remote<Layer>("worker1", torch::ones({3}));
  Context context;
  Tensor y = x * other;
  Tensor loss = layer.rpc_sync<&Layer::forward>(y).sum();
  backward(context, {loss}, {.inputs = {y, x}, .timeout = absl::Seconds(30)});
  const Gradients gradients = get_gradients(context);
  EXPECT_EQ(gradients.size(), 2u);
  EXPECT_TRUE(torch::allclose(gradients.at(y), y.detach().cos()));
  EXPECT_TRUE(torch::allclose(gradients.at(x), (y.cos() * other).detach()));
  EXPECT_FALSE(layer.rpc_sync<&Layer::has_gradient>(context.id()));
}

TEST(Autograd, ContextFollowsThen) {
  Group group(2);
  AgentGuard guard(group[0]);
  Context context;
  Tensor x = torch::ones({2}).requires_grad_();
  const int64_t seen = group[0]
                           ->rpc_async<&slow>("worker1", x)
                           .then([](const Tensor&) { return current_context_id().value_or(0); })
                           .wait();
  EXPECT_EQ(seen, context.id());
}

TEST(Autograd, SumsOfManyCallsDoNotDependOnArrival) {
  Group group(3);
  AgentGuard guard(group[0]);
  torch::manual_seed(2);
  Tensor x = torch::randn({64}).requires_grad_();
  Tensor reference;
  for (int round = 0; round < 8; ++round) {
    Context context;
    Tensor loss = torch::zeros({});
    for (int i = 0; i < 6; ++i) {
      loss = loss + (group[0]->rpc_sync<&identity>(1 + i % 2, x * (0.37 * i)) * 1.1).exp().sum();
    }
    backward(context, {loss}, {.timeout = absl::Seconds(30)});
    const Tensor gradient = get_gradients(context).at(x);
    if (!reference.defined()) reference = gradient;
    EXPECT_TRUE(torch::equal(gradient, reference));
  }
}

}  // namespace
}  // namespace gradwire::autograd
