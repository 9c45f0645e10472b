// Ten thousand training steps leak neither memory nor table entries.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <limits>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gradwire/autograd/autograd.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/testing/group.h"
#include "gtest/gtest.h"

namespace {

using at::Tensor;
using gradwire::Error;
using gradwire::autograd::BackwardMode;
using gradwire::autograd::Context;
using gradwire::autograd::get_gradients;
using gradwire::rpc::AgentGuard;
using gradwire::rpc::AgentTables;
using gradwire::rpc::RRef;
using gradwire::rpc::testing::Group;

constexpr int kParts = 5;
constexpr int kStepsOfAPart = 2000;
// The limit for the growth of the memory in one part: 128 bytes for each step.
constexpr int64_t kGrowth = int64_t{128} * kStepsOfAPart;

class Layer {
 public:
  explicit Layer(int64_t width) : weight_(at::full({width}, 0.5).requires_grad_()) {}
  Tensor forward(const Tensor& x) { return x * weight_; }
  double step(int64_t context) {
    const Tensor gradient = get_gradients(context).at(weight_);
    at::AutoGradMode no_graph(false);
    weight_.sub_(gradient, 0.01);
    return gradient.sum().item<double>();
  }

 private:
  Tensor weight_;
};
GRADWIRE_RPC_CLASS(Layer, int64_t)
GRADWIRE_RPC_METHOD(Layer, forward)
GRADWIRE_RPC_METHOD(Layer, step)

int64_t resident_bytes() {
  int64_t pages = 0;
  std::ifstream statm("/proc/self/statm");
  statm >> pages >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

bool knows(const Group& group, std::size_t rank, int64_t context) {
  AgentGuard guard(group[rank]);
  try {
    get_gradients(context);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kNotFound) << error.what();
    return false;
  }
}

// Waits until both workers have released the contexts and no call is in progress, and returns the resident
// bytes of the process. One reference may exist. Checks only every sixteenth context, because each check
// throws an exception, which is slow.
int64_t quiet_bytes(const Group& group, const std::vector<int64_t>& contexts) {
  const absl::Time end = absl::Now() + absl::Seconds(60);
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    for (std::size_t i = contexts.size() % 16; i < contexts.size(); i += 16) {
      while (knows(group, rank, contexts[i])) {
        if (absl::Now() > end) {
          ADD_FAILURE() << "worker" << rank << " still has context " << contexts[i] << " after 60 s";
          return 0;
        }
        std::this_thread::yield();
      }
    }
    while (true) {
      const AgentTables tables = group[rank]->tables();
      if (tables.pending_calls + tables.served_calls + tables.unconfirmed_children == 0 &&
          tables.owned_rrefs <= 1 && tables.held_forks <= 1) {
        break;
      }
      if (absl::Now() > end) {
        ADD_FAILURE() << "worker" << rank << " still has " << tables.pending_calls << " pending calls, "
                      << tables.served_calls << " served calls, " << tables.owned_rrefs << " owned RRefs, "
                      << tables.held_forks << " held forks";
        return 0;
      }
      std::this_thread::yield();
    }
  }
  return resident_bytes();
}

// Runs training steps. One third uses the smart mode, one third the smart mode with a call whose result is
// not used, one third the fast mode.
std::vector<int64_t> train(const Group& group, const RRef<Layer>& layer, int steps) {
  std::vector<int64_t> contexts;
  const Tensor input = at::ones({16});
  for (int i = 0; i < steps; ++i) {
    const Tensor x = (input + i % 5).requires_grad_();
    Context context;
    Tensor unused;
    if (i % 3 == 1) unused = layer.rpc_sync<&Layer::forward>(x);
    const Tensor loss = layer.rpc_sync<&Layer::forward>(x).sum();
    gradwire::autograd::backward(
        context, {loss},
        {.mode = i % 3 == 2 ? BackwardMode::kFast : BackwardMode::kSmart, .timeout = absl::Seconds(30)});
    EXPECT_EQ(get_gradients(context).size(), 1u);
    const double sum = layer.rpc_sync<&Layer::step>(context.id());
    EXPECT_EQ(sum, 16.0 * (1 + i % 5));
    contexts.push_back(context.id());
  }
  return contexts;
}

TEST(Steps, LeakNothing) {
  Group group(2);
  AgentGuard guard(group[0]);
  {
    const RRef<Layer> layer = group[0]->remote<Layer>("worker1", int64_t{16});
    int64_t before = quiet_bytes(group, train(group, layer, kStepsOfAPart));
    // On a busy machine threads may start late, and then allocate stacks and arenas in any part. A leak shows
    // in every part, so the least growth counts.
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int part = 1; part < kParts; ++part) {
      const absl::Time begun = absl::Now();
      const int64_t after = quiet_bytes(group, train(group, layer, kStepsOfAPart));
      std::cout << kStepsOfAPart << " steps in " << absl::Now() - begun << ": " << (after - before) / 1024
                << " KiB more than " << before / 1024 << " KiB\n";
      least = std::min(least, after - before);
      before = after;
    }
    EXPECT_LE(least, kGrowth);
  }
  group.expect_empty();
}

}  // namespace
