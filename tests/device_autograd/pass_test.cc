// Tests what a backward pass over several workers offers, with tensors on devices: references, checkpoints,
// gradients of gradients, requested gradients, device maps, and no waits of the host.
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>

#include "gradwire/autograd/checkpoint.h"
#include "gradwire/tests/device_autograd/device_layers.h"

namespace gradwire::autograd {
namespace {

using at::Tensor;
using rpc::RRef;

// Small integers. With them all sums are exact, so that their order does not matter.
Tensor numbers() { return at::randint(-3, 4, {30}).to(at::kDouble); }

// A function with a weight on a device. Its results are on the devices of its input, unless it says another.
class Curve {
 public:
  Curve(const std::string& place, const Tensor& weight) : weight_(leaf_on(place, weight)) {}

  Tensor forward(const Tensor& x) { return run(x, weight_); }
  // Keeps only its input, and ends on another device.
  Tensor recomputed(const Tensor& x, const std::string& to) {
    const Tensor y = x * 3;
    return checkpoint(
        [this, to](const std::vector<Tensor>& in) {
          return std::vector{moved(run(in[0] * 2, weight_), at_place(to))};
        },
        {y})[0];
  }
  Tensor through(const Tensor& x, const RRef<Curve>& next) {
    return next.rpc_sync<&Curve::forward>(forward(x)) * moved(weight_, x.device());
  }
  Tensor recomputed_through(const Tensor& x, const RRef<Curve>& next) {
    return checkpoint(
        [this, next](const std::vector<Tensor>& in) { return std::vector{through(in[0], next)}; }, {x})[0];
  }
  Tensor gradient(int64_t context) {
    const Tensor gradient = get_gradients(context).at(weight_).detach();
    EXPECT_EQ(gradient.device(), weight_.device());
    return gradient.cpu();
  }
  RRef<Tensor> parameter() { return RRef<Tensor>(weight_); }

  static Tensor run(const Tensor& x, const Tensor& weight) {
    const Tensor there = moved(x, weight.device());
    return moved(there * weight * there, x.device());
  }

 private:
  const Tensor weight_;
};
GRADWIRE_RPC_CLASS(Curve, std::string, Tensor)
GRADWIRE_RPC_METHOD(Curve, forward)
GRADWIRE_RPC_METHOD(Curve, recomputed)
GRADWIRE_RPC_METHOD(Curve, through)
GRADWIRE_RPC_METHOD(Curve, recomputed_through)
GRADWIRE_RPC_METHOD(Curve, gradient)
GRADWIRE_RPC_METHOD(Curve, parameter)

Tensor sum_of(const RRef<Tensor>& value) { return value.to_here().square().sum(); }
GRADWIRE_RPC(sum_of)
Tensor spread(const Tensor& x) { return x.sum().expand({3}); }
GRADWIRE_RPC(spread)
Tensor raise_first(Tensor x) {
  x[0].add_(1);
  return x;
}
GRADWIRE_RPC(raise_first)
std::string device_of(const Tensor& x) { return x.device().str(); }
GRADWIRE_RPC(device_of)

// The parameter: the channel. The weights are on lag:0 of worker1 and lag:1 of worker2.
class DevicePass : public testing::TestWithParam<const char*> {
 protected:
  DevicePass() : guard_(group_[0]) {
    lag::set_lag({});
    at::manual_seed(3);
    for (int i = 0; i < 2; ++i) {
      weights_.push_back(leaf_on("cpu", numbers()));
      curves_.push_back(
          rpc::remote<Curve>("worker" + std::to_string(i + 1), "lag:" + std::to_string(i), weights_.back()));
    }
  }
  ~DevicePass() override {
    curves_.clear();
    group_.expect_empty();
  }
  Tensor gradient(int curve, const Context& context) const {
    return curves_[static_cast<std::size_t>(curve)].rpc_sync<&Curve::gradient>(context.id());
  }
  Tensor through_here(const Tensor& x) const {
    return Curve::run(Curve::run(x, weights_[0]), weights_[1]) * weights_[0];
  }
  void expect_weights(const Context& context, const char* what) const {
    for (int i = 0; i < 2; ++i) {
      expect_same(gradient(i, context), weights_[static_cast<std::size_t>(i)].grad(), what);
    }
  }

  const NothingLeft after_the_group_;
  rpc::testing::Group group_{3, with_channel(GetParam())};
  const std::shared_ptr<lag::IpcTravel> ipc_ = lag::IpcTravel::by(GetParam(), group_);
  const rpc::AgentGuard guard_;
  std::vector<Tensor> weights_;
  std::vector<RRef<Curve>> curves_;
};
INSTANTIATE_TEST_SUITE_P(Channels, DevicePass, testing::Values("local", "ipc", "host"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DevicePass, TheHostWaitsForNoDevice) {
  const Tensor value = numbers();
  const Tensor x = leaf_on("lag:2", value), local = leaf_on("cpu", value);
  // Make the connections.
  (void)curves_[0].rpc_sync<&Curve::through>(x.detach(), curves_[1]);
  const uint64_t waits = lag::counts().host_waits;
  const Context context;
  const Tensor y = curves_[0].rpc_sync<&Curve::through>(x, curves_[1]);
  backward(context, {y.sum()});
  const Tensor gradient = get_gradients(context).at(x);
  EXPECT_EQ(lag::counts().host_waits, waits);
  through_here(local).sum().backward();
  EXPECT_EQ(gradient.device(), x.device());
  expect_same(gradient, local.grad(), "x");
  expect_weights(context, "weights");
}

TEST_P(DevicePass, AGraphThatIsRetainedIsUsedAgain) {
  const Tensor value = numbers();
  const Tensor x = leaf_on("lag:0", value), local = leaf_on("cpu", value);
  const Context context;
  const Tensor loss = curves_[0].rpc_sync<&Curve::through>(x, curves_[1]).sum();
  const Tensor local_loss = through_here(local).sum();
  for (const bool retain : {true, true, false}) {
    backward(context, {loss}, {.retain_graph = retain});
    torch::autograd::backward({local_loss}, {}, retain);
  }
  expect_same(get_gradients(context).at(x), local.grad(), "x");
  expect_weights(context, "weights");
}

TEST_P(DevicePass, RequestedGradientsAreComputedOnTheirDevices) {
  const Tensor value = numbers();
  const Tensor x = leaf_on("lag:2", value), local = leaf_on("cpu", value);
  const Context context;
  const Tensor y = curves_[0].rpc_sync<&Curve::through>(x, curves_[1]).sum();
  const Tensor of_x = grad(context, {y}, {x}, {.retain_graph = true})[0];
  EXPECT_EQ(of_x.device(), x.device());
  backward(context, {y}, {.inputs = {curves_[1].rpc_sync<&Curve::parameter>()}});
  const auto expected = torch::autograd::grad({through_here(local).sum()}, {local, weights_[1]});
  expect_same(of_x, expected[0], "x");
  expect_same(gradient(1, context), expected[1], "weight");
}

TEST_P(DevicePass, GradientsOfGradientsCrossWorkers) {
  const Tensor value = numbers();
  const Tensor x = leaf_on("lag:2", value), local = leaf_on("cpu", value);
  const Context context;
  const Tensor y = curves_[0].rpc_sync<&Curve::through>(x, curves_[1]).sum();
  const Tensor slope = grad(context, {y}, {x}, {.create_graph = true})[0];
  backward(context, {y + slope.square().sum()});
  const Tensor local_y = through_here(local).sum();
  const Tensor local_slope =
      torch::autograd::grad({local_y}, {local}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  torch::autograd::backward({local_y + local_slope.square().sum()});
  expect_same(slope, local_slope, "slope");
  expect_same(get_gradients(context).at(x), local.grad(), "x");
  expect_weights(context, "weights");
}

// The result of the checkpoint is on another device than its input, so its node runs on the stream of one and
// returns a gradient on the other.
TEST_P(DevicePass, ACheckpointReturnsItsGradientOnTheDeviceOfItsInput) {
  for (int round = 0; round < 20; ++round) {
    lag::set_lag(lag::Profile::seeded(static_cast<uint64_t>(round)));
    const Tensor value = numbers();
    const Tensor x = leaf_on("lag:0", value), local = leaf_on("cpu", value);
    const Context context;
    const Tensor y =
        curves_[0].rpc_sync<&Curve::recomputed>(x, std::string(round % 2 == 0 ? "lag:1" : "cpu"));
    backward(context, {y.sum()});
    weights_[0].mutable_grad() = Tensor();
    Curve::run(local * 3 * 2, weights_[0]).sum().backward();
    expect_same(get_gradients(context).at(x), local.grad(), "x");
    expect_same(gradient(0, context), weights_[0].grad(), "weight");
  }
}

TEST_P(DevicePass, ACheckpointMayCallOtherWorkers) {
  const Tensor value = numbers();
  const Tensor x = leaf_on("lag:1", value), local = leaf_on("cpu", value);
  const Context context;
  backward(context, {curves_[0].rpc_sync<&Curve::recomputed_through>(x, curves_[1]).sum()});
  through_here(local).sum().backward();
  expect_same(get_gradients(context).at(x), local.grad(), "x");
  expect_weights(context, "weights");
}

TEST_P(DevicePass, ReferencesOfAContextCarryGradients) {
  const Tensor value = numbers();
  const Tensor x = leaf_on("lag:2", value), local = leaf_on("cpu", value);
  const Context context;
  const RRef<Tensor> there = curves_[0].remote<&Curve::forward>(x);
  const RRef<Tensor> loss = rpc::remote<&sum_of>("worker2", there);
  loss.backward(context);
  Curve::run(local, weights_[0]).square().sum().backward();
  expect_same(get_gradients(context).at(x), local.grad(), "x");
  expect_same(gradient(0, context), weights_[0].grad(), "weight");
}

// The elements of an expanded tensor share memory, so a receiver could not change it in place.
TEST_P(DevicePass, AReceiverMayChangeAnExpandedResult) {
  Tensor y = rpc::rpc_sync<&spread>("worker1", moved(at::ones({4}), lag::device(0)));
  y[0].add_(1);
  expect_same(y, at::tensor({5.0F, 4.0F, 4.0F}), "result");
  // The same for an argument that is given away.
  Tensor x = moved(at::full({1}, 4.0F), lag::device(0)).expand({3});
  expect_same(rpc::rpc_sync<&raise_first>("worker1", std::move(x)), at::tensor({5.0F, 4.0F, 4.0F}),
              "argument");
}

// ---- Device maps

class DeviceMapPass : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Channels, DeviceMapPass, testing::Values("local", "ipc", "host"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DeviceMapPass, GradientsGoBackToTheDevicesOfTheirTensors) {
  rpc::RpcBackendOptions options = with_channel(GetParam());
  options.set_device_map("worker1", {{"lag:0", "lag:1"}, {"cpu", "lag:2"}});
  options.set_devices({"lag:0", "lag:1", "lag:2"});
  const NothingLeft after_the_group;
  const rpc::testing::Group group(2, options);
  const std::shared_ptr<lag::IpcTravel> ipc = lag::IpcTravel::by(GetParam(), group, {0});
  const rpc::AgentGuard guard(group[0]);
  const Tensor weight = numbers();
  const auto curve = rpc::remote<Curve>("worker1", std::string("lag:0"), weight);
  for (const std::string place : {"lag:0", "cpu"}) {
    const Tensor value = numbers();
    const Tensor x = leaf_on(place, value), local = leaf_on("cpu", value);
    const std::string there = place == "cpu" ? "lag:2" : "lag:1";
    EXPECT_EQ(rpc::rpc_sync<&device_of>("worker1", x), there);
    const Context context;
    const Tensor y = curve.rpc_sync<&Curve::forward>(x);
    EXPECT_EQ(y.device(), x.device());
    backward(context, {y.sum()});
    Curve::run(local, weight).sum().backward();
    const Tensor gradient = get_gradients(context).at(x);
    EXPECT_EQ(gradient.device(), x.device());
    expect_same(gradient, local.grad(), place);
  }
}

}  // namespace
}  // namespace gradwire::autograd
