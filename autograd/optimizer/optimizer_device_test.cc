// Tests backward, clipping and steps for parameters on a simulated accelerator, on one worker.
#include <c10/core/StreamGuard.h>
#include <torch/nn/utils/clip_grad.h>

#include <string>
#include <vector>

#include "gradwire/autograd/clip_grad.h"
#include "gradwire/autograd/optimizer/optimizer_test_util.h"
#include "gradwire/device/streams.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"
#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

using rpc::RRef;

// Parameters on lag:0, and a copy of them on the CPU. Each forward and backward uses another stream.
class OptimizerDevice : public ::testing::Test {
 protected:
  OptimizerDevice() : guard_(group_[0]) {
    for (const at::Tensor& value : {torch::linspace(-1, 1, 6), torch::linspace(2, 0.5, 6)}) {
      local_.push_back(Layer::leaf(value));
      on_device_.push_back(Layer::leaf(value.to(lag::device(0))));
      parameters_.emplace_back(on_device_.back());
    }
  }

  // The program orders its stream after the steps, which run on the default stream.
  void run_backward(const Context& context, int step) {
    const c10::Stream stream = streams_[static_cast<std::size_t>(step) % 2];
    device::order(lag::default_stream(0), stream);
    const c10::StreamGuard guard(stream);
    const at::Tensor x = input(step).to(lag::device(0), /*non_blocking=*/true);
    const at::Tensor loss = Layer::run(x, on_device_[0], on_device_[1]).pow(2).sum();
    backward(context, {loss});
    Layer::run(input(step), local_[0], local_[1]).pow(2).sum().backward();
  }
  void clear_local_gradients() {
    for (at::Tensor& each : local_) each.mutable_grad() = at::Tensor();
  }
  static std::vector<at::Tensor> to_cpu(const std::vector<at::Tensor>& tensors) {
    lag::synchronize_all();
    std::vector<at::Tensor> moved;
    for (const at::Tensor& each : tensors) moved.push_back(each.detach().cpu());
    return moved;
  }

  rpc::testing::Group group_{1};
  rpc::AgentGuard guard_;
  const c10::Stream streams_[2] = {lag::new_stream(0), lag::new_stream(0)};
  std::vector<at::Tensor> on_device_;
  std::vector<RRef<at::Tensor>> parameters_;
  std::vector<at::Tensor> local_;
};

TEST_F(OptimizerDevice, GradientsOfSeveralPassesAddUp) {
  const Context context;
  const int64_t waits = lag::counts().host_waits;
  for (int step = 0; step < 6; ++step) run_backward(context, step);
  EXPECT_EQ(lag::counts().host_waits, waits);
  std::vector<at::Tensor> sums = get_gradients(context).of(on_device_);
  // The current stream waits for both streams of the passes.
  for (at::Tensor& sum : sums) sum = sum.cpu();
  EXPECT_TRUE(equal(sums, {local_[0].grad(), local_[1].grad()})) << sums << local_[0].grad();
}

// The gradient of `middle` is not in the context, so only the end of the pass orders its reader.
TEST_F(OptimizerDevice, CallerReadsWhatThePassComputedOnOtherStreams) {
  const Context context;
  const at::Tensor x = on_device_[0];
  at::Tensor middle, loss, read;
  {
    const lag::StreamHold hold(streams_[0]);
    {
      const c10::StreamGuard guard(streams_[0]);
      middle = x * 2;
      middle.retain_grad();
      loss = middle.sin().sum();
    }
    backward(context, {loss});
    read = middle.grad() * 1;
  }
  lag::synchronize_all();
  EXPECT_TRUE(torch::equal(read.cpu(), (local_[0].detach() * 2).cos()));
}

TEST_F(OptimizerDevice, ClippingAndStepsAreThoseOfTheCpu) {
  DistributedOptimizer<torch::optim::SGD> optimizer(parameters_, sgd_options());
  torch::optim::SGD local(local_, sgd_options());
  for (int step = 0; step < 8; ++step) {
    const Context context;
    clear_local_gradients();
    run_backward(context, step);
    const int64_t waits = lag::counts().host_waits;
    const double norm = clip_grad_norm_(context, parameters_, 0.5);
    // The host waits once, for the norm and the factor together.
    EXPECT_EQ(lag::counts().host_waits - waits, 1);
    EXPECT_EQ(norm, torch::nn::utils::clip_grad_norm_(local_, 0.5));
    optimizer.step(context);
    EXPECT_EQ(lag::counts().host_waits - waits, 1);
    local.step();
    EXPECT_TRUE(equal(to_cpu(on_device_), to_cpu(local_))) << step;
  }
}

TEST_F(OptimizerDevice, SavedStateIsLoadedOnTheDeviceOfTheParameter) {
  DistributedOptimizer<torch::optim::Adam> optimizer(parameters_, adam_options());
  torch::optim::Adam local(local_, adam_options());
  for (int step = 0; step < 4; ++step) {
    const Context context;
    clear_local_gradients();
    run_backward(context, step);
    optimizer.step(context);
    local.step();
    const std::string saved = optimizer.save();
    optimizer.load(saved);
    EXPECT_TRUE(equal(to_cpu(on_device_), to_cpu(local_))) << step;
  }
}

}  // namespace
}  // namespace gradwire::autograd
