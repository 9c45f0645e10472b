// Tests replicated modules inside autograd contexts: two trainers average their gradients, and a part of the
// computation runs on a third worker.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/pass/context.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/data_parallel/test_modules.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::autograd {

at::Tensor doubled(const at::Tensor& x) { return x * 2; }
GRADWIRE_RPC(doubled)

namespace {

using collectives::testing::Group;
using collectives::testing::Ranks;
using data_parallel::BranchesImpl;
using data_parallel::DistributedDataParallel;
using data_parallel::integers;
using data_parallel::kOptions;
using data_parallel::Net;
using data_parallel::NetImpl;
using data_parallel::share;

// Runs `body` on each trainer; the trainer's agent is the current agent.
std::vector<absl::Status> on_trainers(const Ranks& ranks, const rpc::testing::Group& agents,
                                      const std::function<void(const Group& group)>& body) {
  return ranks.results([&](const Group& group) {
    const rpc::AgentGuard guard(agents[group->rank() + 1]);
    body(group);
  });
}

void expect_ok(const std::vector<absl::Status>& results) {
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

at::Tensor remote_loss(const at::Tensor& output) { return rpc::rpc_sync<&doubled>("ps", output).sum(); }

// The expected average over two trainers, if each has one half of the batch and doubles its loss.
std::vector<at::Tensor> expected(const at::Tensor& batch) {
  NetImpl net;
  fill(net, 0);
  net.forward(batch).sum().backward();
  return gradients_of(net);
}

void expect_in_context(const Context& context, const NetImpl& net, const std::vector<at::Tensor>& want) {
  const Gradients gradients = get_gradients(context);
  const std::vector<at::Tensor> parameters = net.parameters();
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(gradients.contains(parameters[i])) << i;
    EXPECT_TRUE(at::equal(gradients.at(parameters[i]), want[i])) << i << "\n" << gradients.at(parameters[i]);
  }
}

TEST(ContextGradients, AveragesAreInTheContextAndGradDoesNotChange) {
  const rpc::testing::Group agents({"ps", "trainer0", "trainer1"});
  const Ranks ranks(2, kOptions);
  const at::Tensor batch = integers({8, 4}, 1);
  for (double cap : {25.0, 1e-9}) {
    expect_ok(on_trainers(ranks, agents, [&](const Group& group) {
      Net net;
      fill(*net, group->rank());
      DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = cap});
      for (int step = 0; step < 3; ++step) {
        const Context context;
        backward(context, {remote_loss(model.forward(share(batch, group)))});
        expect_in_context(context, *net, expected(batch));
        EXPECT_FALSE(net->first->weight.grad().defined());
      }
      // A pass of libtorch's own engine, after which `.grad` is a view into the buckets; then one more in a
      // context.
      model.forward(share(batch, group)).sum().backward();
      const at::Tensor grad = net->third->weight.grad().clone();
      EXPECT_TRUE(at::equal(grad, expected(batch)[4] / 2));
      const Context context;
      backward(context, {remote_loss(model.forward(share(batch, group)))});
      expect_in_context(context, *net, expected(batch));
      EXPECT_TRUE(at::equal(net->third->weight.grad(), grad));
    }));
  }
}

TEST(ContextGradients, PassesInOneContextAddUpAndNoSyncDefersTheAverage) {
  const rpc::testing::Group agents({"ps", "trainer0", "trainer1"});
  const Ranks ranks(2, kOptions);
  const at::Tensor batch = integers({8, 4}, 1);
  const at::Tensor more = integers({8, 4}, 2);
  expect_ok(on_trainers(ranks, agents, [&](const Group& group) {
    Net net;
    fill(*net, group->rank());
    DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = 1e-9});
    {
      const Context context;
      backward(context, {remote_loss(model.forward(share(batch, group)))});
      backward(context, {remote_loss(model.forward(share(more, group)))});
      expect_in_context(context, *net, expected(at::cat({batch, more})));
    }
    const Context context;
    {
      const auto guard = model.no_sync();
      backward(context, {remote_loss(model.forward(share(batch, group)))});
      NetImpl alone;
      fill(alone, 0);
      (alone.forward(share(batch, group)).sum() * 2).backward();
      expect_in_context(context, *net, gradients_of(alone));
    }
    backward(context, {remote_loss(model.forward(share(more, group)))});
    expect_in_context(context, *net, expected(at::cat({batch, more})));
  }));
}

TEST(ContextGradients, UnusedParameters) {
  const rpc::testing::Group agents({"ps", "trainer0", "trainer1"});
  const Ranks ranks(2, kOptions);
  const at::Tensor x = integers({2, 2}, 1);
  expect_ok(on_trainers(ranks, agents, [&](const Group& group) {
    auto net = std::make_shared<BranchesImpl>();
    DistributedDataParallel model(net,
                                  {.group = group, .bucket_cap_mb = 1e-9, .find_unused_parameters = true});
    for (int step = 0; step < 2; ++step) {
      const Context context;
      backward(context, {remote_loss(model.forward(x, group->rank() == step, true))});
      const Gradients gradients = get_gradients(context);
      const at::Tensor whole = x.sum(0).expand({2, 2});
      EXPECT_TRUE(at::equal(gradients.at(net->left->weight), whole));
      EXPECT_TRUE(at::equal(gradients.at(net->right->weight), whole * 2));
      EXPECT_FALSE(gradients.contains(net->unused->weight));
    }
  }));
}

TEST(ContextGradients, TrainerThatFailsEndsThePassOfTheOther) {
  const rpc::testing::Group agents({"ps", "trainer0", "trainer1"});
  const Ranks ranks(2, kOptions);
  const at::Tensor batch = integers({8, 4}, 1);
  expect_ok(on_trainers(ranks, agents, [&](const Group& group) {
    Net net;
    DistributedDataParallel model(net, {.group = group});
    if (group->rank() == 1) {
      group->destroy();
      return;
    }
    const Context context;
    const at::Tensor loss = remote_loss(net->forward(batch));
    try {
      backward(context, {loss});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_TRUE(absl::StrContains(error.what(), "averaging the gradients")) << error.what();
    }
  }));
}

}  // namespace
}  // namespace gradwire::autograd
