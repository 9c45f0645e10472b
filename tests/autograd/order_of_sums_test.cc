// The gradients agree in every bit with those of libtorch in one process, where a clone() replaces each
// tensor of a message.

#include <ATen/Functions.h>
#include <ATen/SequenceNumber.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>

#include <barrier>
#include <functional>
#include <vector>

#include "gradwire/autograd/autograd.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/autograd/random.h"
#include "gtest/gtest.h"

namespace {

using at::Tensor;
using gradwire::Future;
using gradwire::autograd::BackwardMode;
using gradwire::autograd::BackwardOptions;
using gradwire::autograd::Context;
using gradwire::autograd::get_gradients;
using gradwire::rpc::AgentGuard;
using gradwire::rpc::rpc_async;
using gradwire::rpc::rpc_sync;
using gradwire::rpc::testing::Group;
using programs::Random;

constexpr int kWorkers = 3;
constexpr int64_t kDepth = 3;

// One leaf for each worker.
std::vector<Tensor> weights;

std::vector<Tensor> make_weights(uint64_t seed) {
  Random random(seed);
  std::vector<Tensor> made;
  for (int i = 0; i < kWorkers; ++i) {
    Tensor weight = at::empty({5});
    for (int64_t k = 0; k < weight.numel(); ++k) {
      weight.data_ptr<float>()[k] = 0.25f + static_cast<float>(random.next() >> 40) * 0x1p-24f;
    }
    made.push_back(weight.requires_grad_());
  }
  return made;
}

// Starts a call of run() on a worker. Returns a function that waits for the result.
using Call = std::function<std::function<Tensor()>(int to, const Tensor& x, uint64_t seed, int64_t depth)>;

// Runs a random program of elementwise operations and calls, in which every value is used.
Tensor run(const Tensor& x, const Tensor& weight, uint64_t seed, int64_t depth, const Call& call) {
  Random random(seed);
  std::vector<Tensor> values = {x};
  std::vector<std::function<Tensor()>> in_flight;
  const int64_t steps = random.between(3, 7);
  for (int64_t i = 0; i < steps; ++i) {
    const Tensor value = random.of(values);
    const uint64_t dice = random.below(10);
    if (dice < 4 && depth > 0) {
      const int to = static_cast<int>(random.below(kWorkers));
      const bool sends_leaf = random.percent(30);
      auto wait = call(to, sends_leaf ? weight : value, random.next() >> 1, depth - 1);
      if (random.percent(50)) {
        values.push_back(wait());
      } else {
        in_flight.push_back(std::move(wait));
      }
    } else if (dice < 7) {
      values.push_back(value * weight);
    } else if (dice < 9) {
      values.push_back((value * 1.7).sin());
    } else {
      values.push_back(value + random.of(values) * 0.3);
    }
  }
  for (const auto& wait : in_flight) values.push_back(wait());
  Tensor sum = weight * 0.1;
  for (const Tensor& value : values) sum = sum + value * 0.7;
  return sum;
}

Tensor run_in_one_process(int worker, const Tensor& x, uint64_t seed, int64_t depth) {
  return run(x, weights[worker], seed, depth,
             [](int to, const Tensor& x, uint64_t seed, int64_t depth) -> std::function<Tensor()> {
               const Tensor result = run_in_one_process(to, x.clone(), seed, depth).clone();
               return [result] { return result; };
             });
}

Tensor branch(const Tensor& x, int64_t worker, int64_t seed, int64_t depth);
GRADWIRE_RPC(branch)

Tensor run_over_workers(int64_t worker, const Tensor& x, uint64_t seed, int64_t depth) {
  return run(x, weights[worker], seed, depth,
             [](int to, const Tensor& x, uint64_t seed, int64_t depth) -> std::function<Tensor()> {
               const Future<Tensor> result =
                   rpc_async<&branch>(to, x, int64_t{to}, static_cast<int64_t>(seed), depth);
               return [result] { return result.wait(); };
             });
}

Tensor branch(const Tensor& x, int64_t worker, int64_t seed, int64_t depth) {
  return run_over_workers(worker, x, static_cast<uint64_t>(seed), depth);
}

using Gradients = std::vector<Tensor>;

Gradients expected(uint64_t seed, int passes) {
  weights = make_weights(seed);
  const Tensor loss = run_in_one_process(0, weights[0] * 0.5, seed, kDepth).sum();
  for (int i = 0; i < passes; ++i) torch::autograd::backward({loss}, {}, i + 1 < passes);
  Gradients gradients;
  for (const Tensor& weight : weights) gradients.push_back(weight.grad());
  return gradients;
}

Gradients got(const Group& group, uint64_t seed, int passes, const BackwardOptions& options) {
  AgentGuard guard(group[0]);
  weights = make_weights(seed);
  Context context;
  const Tensor loss = run_over_workers(0, weights[0] * 0.5, seed, kDepth).sum();
  for (int i = 0; i < passes; ++i) {
    BackwardOptions with = options;
    with.retain_graph = i + 1 < passes;
    with.timeout = absl::Seconds(60);
    gradwire::autograd::backward(context, {loss}, with);
  }
  Gradients gradients;
  for (int i = 0; i < kWorkers; ++i) {
    AgentGuard worker_guard(group[i]);
    // The program may not have called this worker. Then it does not know the context.
    Tensor gradient;
    try {
      const auto all = get_gradients(context.id());
      if (all.contains(weights[i])) gradient = all.at(weights[i]);
    } catch (const gradwire::Error&) {
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || at::equal(a.contiguous().view(at::kInt), b.contiguous().view(at::kInt));
}

void expect_libtorchs_bits(int programs, int passes, const BackwardOptions& options) {
  Group group(kWorkers);
  int wrong = 0;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(programs); ++seed) {
    const Gradients one_process = expected(seed, passes);
    const Gradients many = got(group, seed, passes, options);
    bool same = true;
    for (int i = 0; i < kWorkers; ++i) same &= same_bits(one_process[i], many[i]);
    if (!same && ++wrong <= 3) {
      ADD_FAILURE() << "seed " << seed << ": got\n" << many << "\nexpected\n" << one_process;
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << programs << " programs";
  weights.clear();
}

TEST(OrderOfSums, RandomProgramsHaveLibtorchsBits) { expect_libtorchs_bits(40, 1, {}); }

TEST(OrderOfSums, RandomProgramsHaveLibtorchsBitsInTheFastMode) {
  expect_libtorchs_bits(20, 1, {.mode = BackwardMode::kFast});
}

TEST(OrderOfSums, SeveralPassesHaveLibtorchsBits) { expect_libtorchs_bits(15, 3, {}); }

// ---- Threads whose sequence numbers differ build the graph of one leaf.

constexpr int kCalls = 3;

// Makes the handlers of one run wait for each other, so that each of them has a thread of its own.
std::barrier<>* inside = nullptr;

// Raises the sequence number of the thread to `past`, as if the thread had created so many nodes before.
Tensor weigh(const Tensor& x, int64_t past) {
  inside->arrive_and_wait();
  while (at::sequence_number::peek() < static_cast<uint64_t>(past)) at::sequence_number::get_and_increment();
  return x * weights[1];
}
GRADWIRE_RPC(weigh)

// The float32 sum of these factors is 1 or 0, depending on the order of additions.
const std::vector<float> kFactors = {1, 1e8f, -1e8f};

Tensor gradient(const Group& group, const std::vector<int64_t>& pasts) {
  AgentGuard guard(group[0]);
  std::barrier<> barrier(kCalls);
  inside = &barrier;
  Context context;
  std::vector<Future<Tensor>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(rpc_async<&weigh>("worker1", at::full({1}, kFactors[i]), pasts[i]));
  }
  Tensor loss = calls[0].wait();
  for (int i = 1; i < kCalls; ++i) loss = loss + calls[i].wait();
  gradwire::autograd::backward(context, {loss}, {.timeout = absl::Seconds(30)});
  AgentGuard owner_guard(group[1]);
  return get_gradients(context.id()).at(weights[1]);
}

TEST(OrderOfSums, ThreadsThatBuildTheGraphDoNotChangeIt) {
  Group group(2);
  weights = {Tensor(), at::ones({1}).requires_grad_()};
  Tensor loss = (at::full({1}, kFactors[0]) * weights[1]).clone();
  for (int i = 1; i < kCalls; ++i) loss = loss + (at::full({1}, kFactors[i]) * weights[1]).clone();
  loss.backward();
  const Tensor one_process = weights[1].grad().clone();
  weights[1].mutable_grad() = Tensor();
  for (const std::vector<int64_t>& pasts : {std::vector<int64_t>{1000000, 2000000, 3000000},
                                            {6000000, 5000000, 4000000},
                                            {8000000, 7000000, 9000000}}) {
    const Tensor distributed = gradient(group, pasts);
    EXPECT_TRUE(at::equal(distributed, one_process)) << "got " << distributed << ", expected " << one_process;
  }
  weights.clear();
}

}  // namespace
