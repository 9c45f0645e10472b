#include "gradwire/tools/bench/suites/train_step.h"

#include <stdexcept>

#include "gradwire/tools/bench/suites/flat_mlp.h"
#include "gradwire/tools/bench/suites/mlp.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

// The server is in this process. Only the functions of train_step do something.
class LocalRpc : public TensorRpc {
 public:
  at::Tensor pull_model(int) override { return model_parameters(); }
  void push_model(int, const at::Tensor& gradient) override { apply_model_gradient(gradient); }

  void nothing(int) override {}
  absl::AnyInvocable<void()> nothing_async(int) override { return nullptr; }
  at::Tensor add(int, const at::Tensor&, const at::Tensor&) override { return {}; }
  absl::AnyInvocable<at::Tensor()> add_async(int, const at::Tensor&, const at::Tensor&) override {
    return nullptr;
  }
  absl::AnyInvocable<int64_t()> nap_async(int, int64_t) override { return nullptr; }
  at::Tensor echo(int, const at::Tensor&) override { return {}; }
  double sum(int, const at::Tensor&) override { return 0; }
  double sum_lent(int, const at::Tensor&) override { return 0; }
  double sum_moved(int, at::Tensor) override { return 0; }
  at::Tensor tensor_for(int, int64_t) override { return {}; }
  at::Tensor pass(int, at::Tensor) override { return {}; }
  at::Tensor pull(int, int64_t) override { return {}; }
  void push_gradient(int, const at::Tensor&) override {}
  at::Tensor pull_parameters(int) override { return {}; }
};

class LosesPushes final : public LocalRpc {
  at::Tensor pull_model(int) override { return FlatMlp::initial_parameters(); }
  void push_model(int, const at::Tensor&) override {}
};

TEST(FlatMlp, TrainsAsTheModelInOneProcess) {
  FlatMlp flat;
  LocalMlp local;
  at::Tensor parameters = FlatMlp::initial_parameters();
  EXPECT_EQ(parameters.numel(), 784 * 512 + 512 + 512 * 10 + 10);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor gradient = flat.gradient(parameters);
    EXPECT_FLOAT_EQ(flat.loss(), local.step());
    parameters = parameters.sub(gradient, kMlpLearningRate);
  }
  EXPECT_THROW(flat.gradient(parameters.slice(0, 1)), std::invalid_argument);
}

TEST(TrainStep, ImprovesTheModelOfTheServer) {
  LocalRpc rpc;
  FlatMlp model;
  model.gradient(model_parameters());
  const float before = model.loss();
  const Measurement result = run_train_step(rpc, 0, {.case_name = "train_step", .seconds = 0.05});
  EXPECT_GE(result.calls, 3);
  EXPECT_GT(result.own_cpu_us, 0);
  model.gradient(model_parameters());
  EXPECT_LT(model.loss(), before);
}

TEST(TrainStep, RefusesParametersThatDoNotChange) {
  LosesPushes rpc;
  EXPECT_THROW(run_train_step(rpc, 0, {.case_name = "train_step", .seconds = 0.01}), std::runtime_error);
}

}  // namespace
}  // namespace gradwire::bench
