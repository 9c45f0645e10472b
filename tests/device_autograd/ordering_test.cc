// Tests the order between a pass, the step that follows it, and the next forward, with streams that a test
// holds up. A kernel that is not ordered runs while the stream is held.
#include <ATen/TensorOperators.h>
#include <c10/core/StreamGuard.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <thread>

#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/autograd/statistics.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/device/streams.h"
#include "gradwire/tests/device_autograd/device_layers.h"

namespace gradwire::autograd {
namespace {

using at::Tensor;
using rpc::RRef;

// A weight whose gradient, or another gradient that reads the weight, is computed on a stream that is held
// up.
class Held {
 public:
  Held(const std::string& place, const Tensor& weight)
      : weight_(leaf_on(place, weight)), other_(leaf_on(place, at::ones_like(weight))) {}

  // The gradient of the other parameter reads the weight, on a stream that is held. The gradient of the
  // weight does not depend on that stream.
  Tensor reads_late() { return late_product(other_, weight_.detach()) + weight_; }
  // The gradient of the weight is computed on a stream that is held.
  Tensor learns_late() { return late_product(other_.detach(), weight_); }
  Tensor plain() { return weight_ * 1; }
  Tensor read() { return weight_.detach() * 1; }
  void release() { hold_.reset(); }
  RRef<Tensor> parameter() { return RRef<Tensor>(weight_); }
  Tensor other_gradient(int64_t context) { return get_gradients(context).at(other_).cpu(); }

 private:
  // a * b, on a stream that is held afterwards. Its backward runs on that stream too.
  Tensor late_product(const Tensor& a, const Tensor& b) {
    const c10::Stream here = device::current_stream(weight_.device());
    Tensor late;
    {
      const c10::StreamGuard guard(side_);
      device::order(here, side_);
      late = a * b;
      device::order(side_, here);
      device::record_use(late, here);
    }
    hold_ = std::make_unique<lag::StreamHold>(side_);
    return late;
  }

  const Tensor weight_;
  const Tensor other_;
  // Not of the pool, whose streams are also those of handlers and passes.
  const c10::Stream side_ = lag::unshared_stream(weight_.device().index());
  std::unique_ptr<lag::StreamHold> hold_;
};
GRADWIRE_RPC_CLASS(Held, std::string, Tensor)
GRADWIRE_RPC_METHOD(Held, reads_late)
GRADWIRE_RPC_METHOD(Held, learns_late)
GRADWIRE_RPC_METHOD(Held, plain)
GRADWIRE_RPC_METHOD(Held, read)
GRADWIRE_RPC_METHOD(Held, release)
GRADWIRE_RPC_METHOD(Held, parameter)
GRADWIRE_RPC_METHOD(Held, other_gradient)

// The parameter: the channel. By "host" a message would wait for the stream that is held.
class DeviceOrder : public testing::TestWithParam<const char*> {
 protected:
  DeviceOrder() : guard_(group_[0]) { lag::set_lag(lag::Profile::none()); }
  ~DeviceOrder() override { group_.expect_empty(); }

  const NothingLeft after_the_group_;
  rpc::testing::Group group_{2, with_channel(GetParam())};
  const std::shared_ptr<lag::IpcTravel> ipc_ = lag::IpcTravel::by(GetParam(), group_);
  const rpc::AgentGuard guard_;
  const Tensor start_ = at::rand({40}) + 1;
};
INSTANTIATE_TEST_SUITE_P(Channels, DeviceOrder, testing::Values("local", "ipc"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DeviceOrder, AStepWaitsForEverythingThatThePassReads) {
  const auto held = rpc::remote<Held>("worker1", std::string("lag:0"), start_);
  DistributedOptimizer<torch::optim::SGD> optimizer({held.rpc_sync<&Held::parameter>()},
                                                    torch::optim::SGDOptions(0.5));
  const Context context;
  const uint64_t waits = lag::counts().host_waits;
  backward(context, {held.rpc_sync<&Held::reads_late>().sum()});
  optimizer.step(context);
  const Tensor after = held.rpc_sync<&Held::read>();
  EXPECT_EQ(lag::counts().host_waits, waits);
  // The step is ordered after the stream that is held, and `after` after the step.
  EXPECT_FALSE(reaches_end_soon(0));
  held.rpc_sync<&Held::release>();
  expect_same(held.rpc_sync<&Held::other_gradient>(context.id()), start_, "gradient");
  expect_same(after, start_ - 0.5, "weight");
}

TEST_P(DeviceOrder, TheNextForwardWaitsForTheStep) {
  const auto held = rpc::remote<Held>("worker1", std::string("lag:0"), start_);
  DistributedOptimizer<torch::optim::SGD> optimizer({held.rpc_sync<&Held::parameter>()},
                                                    torch::optim::SGDOptions(0.5));
  const Context context;
  backward(context, {held.rpc_sync<&Held::learns_late>().sum()});
  optimizer.step(context);
  const Tensor after = held.rpc_sync<&Held::read>();
  EXPECT_FALSE(reaches_end_soon(0));
  held.rpc_sync<&Held::release>();
  expect_same(after, start_ - 0.5, "weight");
}

// The step of another trainer waits on the host until this pass has ended. Its request arrived before that,
// so the order of requests does not cover the pass.
TEST_P(DeviceOrder, AStepThatWaitedForAnotherTrainerWaitsForItsReads) {
  const auto held = rpc::remote<Held>("worker1", std::string("lag:0"), start_);
  DistributedOptimizer<torch::optim::SGD> optimizer({held.rpc_sync<&Held::parameter>()},
                                                    torch::optim::SGDOptions(0.5));
  const Context context;
  const Tensor loss = held.rpc_sync<&Held::reads_late>().sum();
  std::thread other([&] {
    const rpc::AgentGuard guard(group_[0]);
    const Context own;
    backward(own, {held.rpc_sync<&Held::plain>().sum()});
    optimizer.step(own);
  });
  // When the step waits, its handler has begun, so its streams do not wait for the pass below.
  EXPECT_TRUE(eventually([&] { return statistics(*group_[1]).waiting_for_steps == 1; }));
  backward(context, {loss});
  other.join();
  EXPECT_FALSE(reaches_end_soon(0));
  held.rpc_sync<&Held::release>();
  expect_same(held.rpc_sync<&Held::other_gradient>(context.id()), start_, "gradient");
  expect_same(held.rpc_sync<&Held::read>(), start_ - 0.5, "weight");
}

// The trainer uses its own parameter, without a call.
class DeviceOrderOfOwn : public DeviceOrder {};
INSTANTIATE_TEST_SUITE_P(Channel, DeviceOrderOfOwn, testing::Values("local"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DeviceOrderOfOwn, TheTrainersOwnForwardWaitsForTheStep) {
  const Tensor weight = leaf_on("lag:0", start_);
  const RRef<Tensor> reference(weight);
  DistributedOptimizer<torch::optim::SGD> optimizer({reference}, torch::optim::SGDOptions(0.5));
  const c10::Stream side = lag::unshared_stream(0);
  const c10::Stream here = device::current_stream(lag::device(0));
  const Context context;
  Tensor loss;
  {
    const c10::StreamGuard guard(side);
    loss = weight.sum();
    device::order(side, here);
  }
  auto hold = std::make_unique<lag::StreamHold>(side);
  {
    // backward() orders the current streams after the pass. These are not the ones of the next forward.
    const c10::StreamGuard guard(lag::unshared_stream(0));
    backward(context, {loss});
  }
  optimizer.step(context);
  const Tensor after = weight.detach() * 1;
  EXPECT_FALSE(reaches_end_soon(0));
  hold.reset();
  expect_same(after, start_ - 0.5, "weight");
}

}  // namespace
}  // namespace gradwire::autograd
