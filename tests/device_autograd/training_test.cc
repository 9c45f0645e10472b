// Trains parameters on the devices of several workers, and compares losses and parameters bit for bit with
// libtorch on the CPU of one process.
#include <c10/core/StreamGuard.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "gradwire/autograd/clip_grad.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/rpc/stock_modules.h"
#include "gradwire/tests/device_autograd/device_layers.h"

namespace gradwire::autograd {
namespace {

using at::Tensor;
using rpc::RRef;

constexpr int kSteps = 20;

// A parameter whose gradient does not read it.
struct Scale {
  Scale(const std::string& place, const Tensor& value) : weight(leaf_on(place, value)) {}
  Tensor forward(const Tensor& x) { return moved(x, weight.device()) * weight; }
  // Its gradient is 2 * weight.
  Tensor square() { return weight * weight; }
  RRef<Tensor> parameter() { return RRef<Tensor>(weight); }
  Tensor gradient(int64_t context) { return get_gradients(context).at(weight).cpu(); }
  Tensor value() { return weight.detach().cpu(); }
  Tensor weight;
};
GRADWIRE_RPC_CLASS(Scale, std::string, Tensor)
GRADWIRE_RPC_METHOD(Scale, forward)
GRADWIRE_RPC_METHOD(Scale, square)
GRADWIRE_RPC_METHOD(Scale, parameter)
GRADWIRE_RPC_METHOD(Scale, gradient)
GRADWIRE_RPC_METHOD(Scale, value)

torch::optim::SGDOptions options_of(const torch::optim::SGD*) {
  return torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.2).weight_decay(0.01);
}
torch::optim::AdamOptions options_of(const torch::optim::Adam*) {
  return torch::optim::AdamOptions(0.05).weight_decay(0.02).amsgrad(true);
}

// ---- Trainers, as handlers. They share the optimizer with this name.

DistributedOptimizer<torch::optim::SGD> shared_optimizer(const RRef<Scale>& scale, Consistency consistency) {
  return DistributedOptimizer<torch::optim::SGD>(
      {scale.rpc_sync<&Scale::parameter>()}, options_of(static_cast<const torch::optim::SGD*>(nullptr)),
      {.consistency = consistency, .trainers = 2, .name = "shared"});
}

int64_t train_on(const std::vector<Tensor>& inputs, const RRef<Scale>& scale, const std::string& place,
                 bool in_step) {
  auto optimizer = shared_optimizer(scale, in_step ? Consistency::kSync : Consistency::kHogwild);
  for (const Tensor& x : inputs) {
    const Context context;
    const Tensor loss = scale.rpc_sync<&Scale::forward>(moved(x, at_place(place))).square().sum();
    backward(context, {loss});
    optimizer.step(context);
  }
  return static_cast<int64_t>(inputs.size());
}
GRADWIRE_RPC(train_on)

// Returns in how many steps the backward saw another weight than the forward.
int64_t train_apart(const std::vector<Tensor>& inputs, const RRef<Scale>& scale) {
  auto optimizer = shared_optimizer(scale, Consistency::kWait);
  int64_t different = 0;
  for (std::size_t step = 0; step < inputs.size(); ++step) {
    const Context context;
    const Tensor squares = scale.rpc_sync<&Scale::square>();
    backward(context, {squares.sum()});
    const Tensor weight = scale.rpc_sync<&Scale::gradient>(context.id()) / 2;
    different += same_bits(weight * weight, squares) ? 0 : 1;
    optimizer.step(context);
  }
  return different;
}
GRADWIRE_RPC(train_apart)

// The parameter: the channel.
class DeviceTraining : public testing::TestWithParam<const char*> {
 protected:
  DeviceTraining() {
    lag::set_lag({});
    at::manual_seed(7);
  }
  ~DeviceTraining() override { group_.expect_empty(); }

  // A layer on each of two workers, a parameter that this worker uses itself, and clipping of all gradients.
  template <class O>
  void train(bool clip) {
    const rpc::AgentGuard guard(group_[0]);
    const std::vector<Tensor> start = {at::randn({6, 5}), at::randn({6}), at::randn({3, 6}), at::randn({3}),
                                       at::rand({3}) + 0.5};
    const auto first = rpc::remote<Layer>("worker1", std::string("lag:0"), start[0], start[1]);
    const auto second = rpc::remote<Layer>("worker2", std::string("lag:1"), start[2], start[3]);
    const Tensor own = leaf_on("lag:2", start[4]);
    std::vector<Tensor> local;
    for (const Tensor& each : start) local.push_back(leaf_on("cpu", each));
    std::vector<RRef<Tensor>> parameters = first.rpc_sync<&Layer::parameters>();
    for (auto& each : second.rpc_sync<&Layer::parameters>()) parameters.push_back(each);
    parameters.emplace_back(own);
    const auto options = options_of(static_cast<const O*>(nullptr));
    DistributedOptimizer<O> optimizer(parameters, options);
    O reference(local, options);
    std::vector<Tensor> losses, expected;
    for (int step = 0; step < kSteps; ++step) {
      const Tensor x = at::randn({4, 5});
      const Context context;
      const Tensor on_device = moved(x, lag::device(2));
      const Tensor y = second.rpc_sync<&Layer::forward>(first.rpc_sync<&Layer::forward>(on_device));
      const Tensor loss = (moved(y, lag::device(2)) * own).square().sum();
      backward(context, {loss});
      reference.zero_grad();
      const Tensor z = Layer::run(Layer::run(x, local[0], local[1]), local[2], local[3]);
      const Tensor local_loss = (z * local[4]).square().sum();
      local_loss.backward();
      if (clip) {
        EXPECT_EQ(clip_grad_norm_(context, parameters, 0.4), torch::nn::utils::clip_grad_norm_(local, 0.4));
      }
      // No wait: the step follows the pass, and the next forward follows the step.
      optimizer.step(context);
      reference.step();
      losses.push_back(loss.detach());
      expected.push_back(local_loss.detach());
    }
    expect_same(losses, expected, "losses");
    std::vector<Tensor> got = first.rpc_sync<&Layer::values>();
    for (Tensor& each : second.rpc_sync<&Layer::values>()) got.push_back(each);
    got.push_back(own.detach());
    for (Tensor& each : local) each = each.detach();
    expect_same(got, local, "parameters");
  }

  // The remote module is on lag:0. `from`: the device of the caller's tensors.
  void train_module(const std::string& from, const std::string& results) {
    // The module's worker copies tensors from the CPU to its device, and back.
    if (ipc_ != nullptr && from == "cpu") ipc_->expect_at_least(0);
    const rpc::AgentGuard guard(group_[0]);
    const rpc::RemoteModule<torch::nn::LinearImpl> remote("worker1/lag:0", 5, 3);
    torch::nn::LinearImpl local(5, 3);
    remote.load_state_dict(rpc::state_dict(local));
    const auto options = options_of(static_cast<const torch::optim::SGD*>(nullptr));
    DistributedOptimizer<torch::optim::SGD> optimizer(remote.remote_parameters(), options);
    torch::optim::SGD reference(local.parameters(), options);
    std::vector<Tensor> losses, expected;
    for (int step = 0; step < kSteps; ++step) {
      const Tensor value = at::randn({4, 5});
      const Tensor x = leaf_on(from, value), local_x = leaf_on("cpu", value);
      const Context context;
      const Tensor y = remote.forward(x);
      EXPECT_EQ(y.device(), at_place(results));
      const Tensor loss = y.square().sum();
      backward(context, {loss});
      const Tensor gradient = get_gradients(context).at(x);
      EXPECT_EQ(gradient.device(), x.device());
      optimizer.step(context);
      reference.zero_grad();
      const Tensor local_loss = local.forward(local_x).square().sum();
      local_loss.backward();
      reference.step();
      losses.push_back(loss.detach());
      expected.push_back(local_loss.detach());
      expect_same(gradient, local_x.grad(), "gradient of the input");
    }
    expect_same(losses, expected, "losses");
    for (const auto& [name, value] : remote.state_dict()) {
      expect_same(value, local.named_parameters()[name].detach(), name);
    }
  }

  // Runs a trainer on each of the workers 0 and 2, at the same time.
  template <auto Trainer, class... A>
  auto run_trainers(const std::vector<Tensor>& first, const std::vector<Tensor>& second,
                    const A&... arguments) {
    std::vector<decltype(group_[0]->rpc_async<Trainer>("worker0", first, arguments...))> trainers;
    trainers.push_back(group_[0]->rpc_async<Trainer>("worker0", first, arguments...));
    trainers.push_back(group_[0]->rpc_async<Trainer>("worker2", second, arguments...));
    return collect(std::move(trainers)).wait();
  }
  static std::vector<Tensor> random_inputs() {
    std::vector<Tensor> inputs;
    for (int step = 0; step < kSteps; ++step) inputs.push_back(at::randn({50}));
    return inputs;
  }

  const NothingLeft after_the_group_;
  rpc::testing::Group group_{3, with_channel(GetParam())};
  const std::shared_ptr<lag::IpcTravel> ipc_ = lag::IpcTravel::by(GetParam(), group_);
};
INSTANTIATE_TEST_SUITE_P(Channels, DeviceTraining, testing::Values("local", "ipc", "host"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DeviceTraining, StepsOfSgdAreThoseOfTheCpu) { train<torch::optim::SGD>(/*clip=*/false); }
TEST_P(DeviceTraining, StepsOfAdamAreThoseOfTheCpu) { train<torch::optim::Adam>(/*clip=*/false); }
TEST_P(DeviceTraining, ClippingOverDevicesAndWorkersIsThatOfTheCpu) {
  train<torch::optim::SGD>(/*clip=*/true);
}
TEST_P(DeviceTraining, ARemoteModuleLearnsFromACallerOnTheCpu) { train_module("cpu", "cpu"); }
TEST_P(DeviceTraining, ARemoteModuleLearnsFromACallerOnAnotherDevice) { train_module("lag:1", "lag:0"); }

TEST_P(DeviceTraining, TrainersInStepAverageTheirGradients) {
  const Tensor start = at::randn({50});
  const std::vector<Tensor> first = random_inputs(), second = random_inputs();
  const auto scale = group_[0]->remote<Scale>("worker1", std::string("lag:0"), start);
  run_trainers<&train_on>(first, second, scale, std::string("lag:1"), true);
  const Tensor local = leaf_on("cpu", start);
  torch::optim::SGD reference({local}, options_of(static_cast<const torch::optim::SGD*>(nullptr)));
  for (std::size_t step = 0; step < first.size(); ++step) {
    Tensor gradients[2];
    for (int i = 0; i < 2; ++i) {
      reference.zero_grad();
      ((i == 0 ? first : second)[step] * local).square().sum().backward();
      gradients[i] = local.grad();
    }
    local.mutable_grad() = (gradients[0] + gradients[1]) / 2.0;
    reference.step();
  }
  expect_same(scale.rpc_sync<&Scale::value>(), local.detach(), "parameter");
}

TEST_P(DeviceTraining, TrainersThatWaitSeeTheSameWeightInForwardAndBackward) {
  const auto scale = group_[0]->remote<Scale>("worker1", std::string("lag:0"), at::rand({50}) + 1);
  const std::vector<int64_t> different = run_trainers<&train_apart>(random_inputs(), random_inputs(), scale);
  EXPECT_EQ(different, (std::vector<int64_t>{0, 0}));
}

TEST_P(DeviceTraining, TrainersThatDoNotWaitBreakNothing) {
  const auto scale = group_[0]->remote<Scale>("worker1", std::string("lag:0"), at::rand({50}));
  run_trainers<&train_on>(random_inputs(), random_inputs(), scale, std::string("cpu"), false);
  EXPECT_TRUE(at::isfinite(scale.rpc_sync<&Scale::value>()).all().item<bool>());
}

}  // namespace
}  // namespace gradwire::autograd
