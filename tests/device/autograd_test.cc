#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <vector>

#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"

namespace gradwire {
namespace {

namespace nn = torch::nn;

void expect_same(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_TRUE(got.cpu().equal(expected)) << "got\n" << got.cpu() << "\nexpected\n" << expected;
}

class LagAutograd : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(3); }
  void TearDown() override { lag::expect_nothing_left(); }
};

// A leaf and its copy on a device.
struct Pair {
  explicit Pair(at::IntArrayRef shape)
      : cpu(torch::randn(shape).requires_grad_()), lag(cpu.detach().to(lag::device(1)).requires_grad_()) {}

  at::Tensor cpu;
  at::Tensor lag;
};

TEST_F(LagAutograd, GradientsOfOperatorsAreTheCpus) {
  using Function = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
  const std::vector<Function> functions = {
      [](const at::Tensor& x, const at::Tensor& y) { return x + y * 2; },
      [](const at::Tensor& x, const at::Tensor& y) { return x * y / (y.abs() + 1); },
      [](const at::Tensor& x, const at::Tensor& y) { return x.matmul(y); },
      [](const at::Tensor& x, const at::Tensor& y) { return at::linear(x, y, y[0]); },
      [](const at::Tensor& x, const at::Tensor& y) { return (x - y).relu(); },
      [](const at::Tensor& x, const at::Tensor& y) { return at::mse_loss(x, y.detach()) + y.sum(); },
      [](const at::Tensor& x, const at::Tensor& y) { return at::softmax(x, 1).mm(y).select(1, 2); },
      [](const at::Tensor& x, const at::Tensor& y) {
        return at::cat({x.t(), y}, 1).slice(1, 2, 6).exp();
      },
      [](const at::Tensor& x, const at::Tensor& y) {
        return x.clone().mul_(y).view({2, 8}).sum(0);
      },
      [](const at::Tensor& x, const at::Tensor& y) { return at::layer_norm(x, {4}, y[1], y[2]).sigmoid(); },
  };
  for (size_t i = 0; i < functions.size(); i++) {
    SCOPED_TRACE(i);
    Pair x({4, 4});
    Pair y({4, 4});
    functions[i](x.cpu, y.cpu).pow(2).sum().backward();
    functions[i](x.lag, y.lag).pow(2).sum().backward();
    expect_same(x.lag.grad(), x.cpu.grad());
    expect_same(y.lag.grad(), y.cpu.grad());
    EXPECT_EQ(x.lag.grad().device(), lag::device(1));
  }
}

TEST_F(LagAutograd, GradientsFlowBetweenDevices) {
  Pair x({4, 4});
  x.cpu.mul(3).sin().sum().backward();
  const at::Tensor there = x.lag.mul(3).to(lag::device(2));
  there.sin().cpu().sum().backward();
  expect_same(x.lag.grad(), x.cpu.grad());
  EXPECT_EQ(x.lag.grad().device(), lag::device(1));
}

TEST_F(LagAutograd, GradientsFollowTheStreamsOfTheForwardPass) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    lag::set_lag(lag::Profile::seeded(seed));
    Pair x({8, 8});
    x.cpu.mm(x.cpu).relu().sum().backward();
    c10::Stream side = lag::new_stream(1);
    const c10::Stream main = lag::default_stream(1);
    c10::Event ready(c10::DeviceType::PrivateUse1);
    ready.record(main);
    side.wait(ready);
    at::Tensor sum;
    {
      const c10::StreamGuard guard(side);
      x.lag.record_stream(side);
      sum = x.lag.mm(x.lag).relu().sum();
    }
    c10::Event done(c10::DeviceType::PrivateUse1);
    done.record(side);
    main.wait(done);
    sum.record_stream(main);
    sum.backward();
    expect_same(x.lag.grad(), x.cpu.grad());
  }
}

// A model with the layers that examples use.
nn::Sequential model() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 3, 3).padding(1)), nn::BatchNorm2d(3), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Flatten(), nn::Linear(48, 10), nn::Tanh(), nn::Linear(10, 4));
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

// Trains the same model on the CPU and on a device, and compares all parameters after each step.
void train(const MakeOptimizer& make) {
  nn::Sequential here = model();
  nn::Sequential there = model();
  there->to(lag::device(0));
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < here->parameters().size(); i++) {
      there->parameters()[i].copy_(here->parameters()[i]);
    }
  }
  const auto optimizer_here = make(here->parameters());
  const auto optimizer_there = make(there->parameters());
  for (int step = 0; step < 5; step++) {
    const at::Tensor x = torch::randn({5, 1, 8, 8});
    const at::Tensor label = torch::randint(0, 4, {5}, at::kLong);
    optimizer_here->zero_grad();
    optimizer_there->zero_grad();
    const at::Tensor loss = nn::functional::cross_entropy(here->forward(x), label);
    const at::Tensor lag_loss =
        nn::functional::cross_entropy(there->forward(x.to(lag::device(0))), label.to(lag::device(0)));
    loss.backward();
    lag_loss.backward();
    optimizer_here->step();
    optimizer_there->step();
    expect_same(lag_loss.detach(), loss.detach());
    for (size_t i = 0; i < here->parameters().size(); i++) {
      expect_same(there->parameters()[i].detach(), here->parameters()[i].detach());
    }
    for (size_t i = 0; i < here->buffers().size(); i++) expect_same(there->buffers()[i], here->buffers()[i]);
  }
}

TEST_F(LagAutograd, TrainsWithSgd) {
  train([](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  });
}

TEST_F(LagAutograd, TrainsWithAdam) {
  train([](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
  });
}

TEST_F(LagAutograd, EmbeddingTrains) {
  nn::Embedding here(10, 4);
  nn::Embedding there(10, 4);
  there->to(lag::device(2));
  there->weight.data().copy_(here->weight.data());
  const at::Tensor index = torch::tensor({1, 3, 3, 9}, at::kLong);
  here->forward(index).pow(2).sum().backward();
  there->forward(index.to(lag::device(2))).pow(2).sum().backward();
  expect_same(there->weight.grad(), here->weight.grad());
}

TEST_F(LagAutograd, RandomNumbersFollowTheSeed) {
  torch::manual_seed(11);
  const at::Tensor a = torch::randn({4}, lag::device(1));
  const at::Tensor b = torch::dropout(torch::ones({100}, lag::device(1)), 0.5, true);
  torch::manual_seed(11);
  const at::Tensor again = torch::randn({4}, lag::device(1));
  expect_same(again, a.cpu());
  expect_same(torch::dropout(torch::ones({100}, lag::device(1)), 0.5, true), b.cpu());
  EXPECT_FALSE(torch::randn({4}, lag::device(1)).cpu().equal(a.cpu()));
  EXPECT_GT(b.sum().item<float>(), 0);
}

}  // namespace
}  // namespace gradwire
