#include "gradwire/tests/gpu/two_processes.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/stock_modules.h"
#include "gradwire/tests/device_calls/device_kind.h"
#include "gradwire/tests/gpu/gpu_services.h"

// Two processes that share a GPU. Numbers are small integers, so that results are equal bit for bit to those
// of the CPU in every order of additions.
namespace gradwire::gpu_tests {
namespace {

using device_kind::delay;
using device_kind::on;
using ::testing::HasSubstr;

at::Tensor integers(at::IntArrayRef sizes) { return at::randint(-8, 9, sizes).to(at::kFloat); }

void expect_equal(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(got.cpu(), expected)) << got.cpu() << "\n expected " << expected;
}

// The argument: the channel.
class TwoProcessesTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    GRADWIRE_NEEDS("channel", find_channel(GetParam()));
    device_kind::begin(1);
    processes_ = std::make_unique<TwoProcesses>(GetParam());
    guard_ = std::make_unique<rpc::AgentGuard>(agent());
    if (std::string(GetParam()) == "ipc") wait_for_ipc();
  }
  void TearDown() override {
    guard_ = nullptr;
    processes_ = nullptr;
    if (!lost_) {
      EXPECT_EQ(device_kind::leftovers(), "");
    }
  }
  const std::shared_ptr<rpc::Agent>& agent() const { return processes_->agent(); }

  // Returns when tensors travel by "ipc": until its probe has succeeded they are copied through the host.
  void wait_for_ipc() {
    ASSERT_TRUE(eventually([this] {
      const Future<at::Tensor> call = rpc::rpc_async<&echo>("worker1", on(0, at::ones({1000})));
      const bool shared = agent()->tables().open_transfers > 0;
      (void)call.wait();
      return shared;
    })) << "the probe of the channel \"ipc\" has not succeeded";
  }

  std::unique_ptr<TwoProcesses> processes_;
  std::unique_ptr<rpc::AgentGuard> guard_;
  // Whether the other process was killed.
  bool lost_ = false;
};
INSTANTIATE_TEST_SUITE_P(Channels, TwoProcessesTest, ::testing::Values("ipc", "host"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TwoProcessesTest, TensorsTravelBothWays) {
  for (const at::Tensor& x : {integers({3}), integers({300, 400}), integers({0, 2}),
                              integers({40, 60}).t().slice(0, 10, 50, 3), integers({1 << 22})}) {
    for (int i = 0; i < 5; ++i) {
      at::Tensor there = on(0, x);
      delay(there.device());
      there = there + i;
      const at::Tensor y = rpc::rpc_sync<&triple>("worker1", there);
      EXPECT_EQ(y.device(), device_kind::device(0));
      expect_equal(y, (x + i) * 3);
      expect_equal(rpc::rpc_sync<&echo>("worker1", there), x + i);
    }
  }
}

TEST_P(TwoProcessesTest, TheCalleeGetsWhatTheTensorWasAtTheCall) {
  std::vector<std::pair<Future<at::Tensor>, at::Tensor>> results;
  for (int i = 0; i < 100; ++i) {
    const at::Tensor x = integers({10'000});
    at::Tensor there = on(0, x);
    delay(there.device());
    there = there * 2;
    results.emplace_back(rpc::rpc_async<&triple>("worker1", there), x * 2 * 3);
    there.fill_(-7);
    if (i % 3 == 0) {
      // The argument is given away, and other memory is taken right after it.
      at::Tensor given = on(0, x) + 1;
      results.emplace_back(rpc::rpc_async<&triple>("worker1", std::move(given)), (x + 1) * 3);
      (void)at::full({10'000}, -9, there.options());
    }
  }
  for (auto& [future, expected] : results) expect_equal(future.wait(), expected);
}

TEST_P(TwoProcessesTest, ManyMessagesReuseMemoryAndEvents) {
  const at::Tensor x = integers({100});
  at::Tensor there = on(0, x);
  for (int i = 0; i < 3000; ++i) there = rpc::rpc_sync<&echo>("worker1", std::move(there));
  expect_equal(there, x);
}

TEST_P(TwoProcessesTest, ReferencesCarryTheOrder) {
  const at::Tensor x = integers({3000});
  const rpc::RRef<at::Tensor> tripled = rpc::remote<&triple>("worker1", on(0, x));
  expect_equal(tripled.to_here(), x * 3);
  const rpc::RRef<at::Tensor> own(on(0, x) * 5);
  expect_equal(rpc::rpc_sync<&fetch>("worker1", own), x * 5);
  const rpc::RRef<Sums> sums = rpc::remote<Sums>("worker1", int64_t{3000});
  at::Tensor expected = at::zeros({3000});
  std::vector<Future<void>> added;
  for (int i = 0; i < 30; ++i) {
    added.push_back(sums.rpc_async<&Sums::add>(on(0, x)));
    expected += x;
  }
  collect(std::move(added)).wait();
  expect_equal(sums.rpc_sync<&Sums::get>(), expected);
}

TEST_P(TwoProcessesTest, RemoteModulesMoveToTheGpu) {
  rpc::RemoteModule<torch::nn::LinearImpl> remote("worker1/cuda:0", 5, 3);
  const std::map<std::string, at::Tensor> state = {{"weight", integers({3, 5})}, {"bias", integers({3})}};
  remote.load_state_dict(state);
  EXPECT_EQ(remote.remote_parameters()[0].rpc_sync<at::Tensor>(rpc::Op("aten::detach")).device(),
            device_kind::device(0));
  const at::Tensor x = integers({4, 5});
  const at::Tensor expected = at::linear(x, state.at("weight"), state.at("bias"));
  // Inputs on the CPU travel to the module, and its results back to the CPU.
  const at::Tensor on_cpu = remote.forward(x).detach();
  EXPECT_TRUE(on_cpu.device().is_cpu());
  expect_equal(on_cpu, expected);
  const at::Tensor on_device = remote.forward(on(0, x)).detach();
  EXPECT_EQ(on_device.device(), device_kind::device(0));
  expect_equal(on_device, expected);
  expect_equal(remote.state_dict().at("weight"), state.at("weight"));
}

TEST_P(TwoProcessesTest, BackwardCrossesTheProcesses) {
  const at::Tensor x = integers({50});
  for (int i = 0; i < 10; ++i) {
    const at::Tensor local = x.clone().requires_grad_();
    (local * 2 * 3 * 3 * local).sum().backward();
    const at::Tensor leaf = on(0, x).requires_grad_();
    const autograd::Context context;
    const at::Tensor once = rpc::rpc_sync<&triple>("worker1", leaf * 2);
    delay(leaf.device());
    const at::Tensor twice = rpc::rpc_sync<&triple>("worker1", once);
    autograd::backward(context, {(twice * leaf).sum()});
    const at::Tensor gradient = autograd::get_gradients(context).at(leaf);
    EXPECT_EQ(gradient.device(), device_kind::device(0));
    expect_equal(gradient, local.grad());
  }
}

TEST_P(TwoProcessesTest, DistributedOptimizerStepsOnTheGpu) {
  const std::map<std::string, at::Tensor> state = {{"weight", integers({3, 5})}, {"bias", integers({3})}};
  rpc::RemoteModule<torch::nn::LinearImpl> remote("worker1/cuda:0", 5, 3);
  remote.load_state_dict(state);
  torch::nn::LinearImpl local(5, 3);
  {
    const at::NoGradGuard no_grad;
    local.weight.copy_(state.at("weight"));
    local.bias.copy_(state.at("bias"));
  }
  // Halves of integers are exact, too.
  const torch::optim::SGDOptions rate(0.5);
  torch::optim::SGD optimizer(local.parameters(), rate);
  autograd::DistributedOptimizer<torch::optim::SGD> distributed(remote.remote_parameters(), rate);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = integers({4, 5});
    optimizer.zero_grad();
    local.forward(x).sum().backward();
    optimizer.step();
    const autograd::Context context;
    autograd::backward(context, {remote.forward(on(0, x)).sum()});
    distributed.step(context);
    const std::map<std::string, at::Tensor> now = remote.state_dict();
    expect_equal(now.at("weight"), local.weight.detach());
    expect_equal(now.at("bias"), local.bias.detach());
  }
}

TEST_P(TwoProcessesTest, ErrorsOfHandlersArriveAndTheGpuIsUsable) {
  const at::Tensor x = integers({1000});
  const absl::Status failed = status_of([&] { (void)rpc::rpc_sync<&fail_late>("worker1", on(0, x)); });
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnknown) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("failed on purpose"));
  const absl::Status mapped = status_of([&] {
    (void)rpc::rpc_sync<&echo>(rpc::Destination("worker1").with_device_map({{"cpu", "cuda:99"}}), x);
  });
  EXPECT_EQ(mapped.code(), absl::StatusCode::kInvalidArgument) << mapped;
  expect_equal(rpc::rpc_sync<&triple>("worker1", on(0, x)), x * 3);
  // To the CPU of the other process, and back.
  const rpc::Destination to_cpu = rpc::Destination("worker1").with_device_map({{"cuda:0", "cpu"}});
  EXPECT_EQ(rpc::rpc_sync<&device_of>(to_cpu, on(0, x)), "cpu");
  expect_equal(rpc::rpc_sync<&triple>(to_cpu, on(0, x)), x * 3);
}

TEST_P(TwoProcessesTest, OutOfMemoryAtTheCalleeIsResourceExhausted) {
  const at::Tensor x = on(0, at::ones({10'000}));
  const absl::Status in_handler = status_of([&] { (void)rpc::rpc_sync<&take_too_much>("worker1", x); });
  EXPECT_EQ(in_handler.code(), absl::StatusCode::kResourceExhausted) << in_handler;
  EXPECT_EQ(worker_of(in_handler), "worker1");
  rpc::rpc_sync<&limit_memory>("worker1", int64_t{32} << 20);
  const at::Tensor large = on(0, at::ones({64 << 20}));
  const absl::Status in_argument = status_of([&] { (void)rpc::rpc_sync<&count>("worker1", large); });
  EXPECT_EQ(in_argument.code(), absl::StatusCode::kResourceExhausted) << in_argument;
  rpc::rpc_sync<&limit_memory>("worker1", int64_t{-1});
  // The worker goes on.
  EXPECT_EQ(rpc::rpc_sync<&count>("worker1", large), 64 << 20);
}

TEST_P(TwoProcessesTest, ALostDeviceIsAnErrorAndTheCpuGoesOn) {
  lost_ = true;
  const at::Tensor x = on(0, at::ones({1000}));
  EXPECT_EQ(rpc::rpc_sync<&count>("worker1", x), 1000);
  (void)status_of([&] { rpc::rpc_sync<&lose_device>("worker1"); });
  const absl::Status lost = status_of([&] { (void)rpc::rpc_sync<&triple>("worker1", x); });
  EXPECT_FALSE(lost.ok());
  EXPECT_EQ(worker_of(lost), "worker1");
  EXPECT_EQ(rpc::rpc_sync<&count>("worker1", at::ones({7})), 7);
  processes_->kill();
}

TEST_P(TwoProcessesTest, AKilledProcessEndsCallsAndLeavesNoMemory) {
  const at::Tensor x = on(0, at::ones({1'000'000}));
  std::vector<Future<at::Tensor>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(rpc::rpc_async<&triple>("worker1", x * 2));
  processes_->kill();
  for (Future<at::Tensor>& call : calls) {
    const absl::Status status = call.result().status();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
  }
}

}  // namespace
}  // namespace gradwire::gpu_tests
