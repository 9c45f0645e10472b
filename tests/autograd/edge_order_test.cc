// sum_in_edge_order, where the graph is built by threads with different pasts.

#include <ATen/Functions.h>
#include <ATen/SequenceNumber.h>
#include <ATen/TensorOperators.h>

#include <barrier>
#include <vector>

#include "autograd/autograd.h"
#include "gtest/gtest.h"
#include "rpc/rpc.h"
#include "rpc/testing/group.h"

namespace {

using at::Tensor;
using gradwire::Future;
using gradwire::autograd::Context;
using gradwire::autograd::get_gradients;
using gradwire::rpc::AgentGuard;
using gradwire::rpc::rpc_async;
using gradwire::rpc::testing::Group;

constexpr int kCalls = 3;

// Holds the handlers of one run until each has a thread.
std::barrier<>* inside = nullptr;
Tensor weight;

// As if the thread had built a graph of `past` nodes before.
Tensor weigh(const Tensor& x, int64_t past) {
  inside->arrive_and_wait();
  while (at::sequence_number::peek() < static_cast<uint64_t>(past)) at::sequence_number::get_and_increment();
  return x * weight;
}
GRADWIRE_RPC(weigh)

Tensor gradient(const Group& group, const std::vector<int64_t>& pasts) {
  AgentGuard guard(group[0]);
  // Whose sum is 1 or 0, by the order of additions.
  const std::vector<float> factors = {1e8f, -1e8f, 1};
  std::barrier<> barrier(kCalls);
  inside = &barrier;
  Context context;
  std::vector<Future<Tensor>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(rpc_async<&weigh>("worker1", at::full({1}, factors[i]), pasts[i]));
  }
  Tensor loss = calls[0].wait();
  for (int i = 1; i < kCalls; ++i) loss = loss + calls[i].wait();
  gradwire::autograd::backward(context, {loss}, {.timeout = absl::Seconds(30), .sum_in_edge_order = true});
  AgentGuard there(group[1]);
  return get_gradients(context.id()).at(weight);
}

TEST(SumInEdgeOrder, DoesNotDependOnTheThreadsThatBuiltTheGraph) {
  Group group(2);
  weight = at::ones({1}).requires_grad_();
  const Tensor first = gradient(group, {1000000, 2000000, 3000000});
  const Tensor second = gradient(group, {6000000, 5000000, 4000000});
  EXPECT_TRUE(at::equal(first, second)) << first << " and " << second;
  weight = Tensor();
}

}  // namespace
