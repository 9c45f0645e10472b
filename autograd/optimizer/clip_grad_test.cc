#include "gradwire/autograd/clip_grad.h"

#include <ATen/ops/from_blob.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/optimizer/optimizer_test_util.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

using rpc::AgentGuard;
using rpc::RRef;
using rpc::testing::Group;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a, b, 0, 0, /*equal_nan=*/true);
}

class ClipGrad : public ::testing::Test {
 protected:
  ClipGrad() : guard_(group_[0]), pair_(group_) {}

  // Computes the gradients of the same loss on the owners and in this process.
  void run_backward(const Context& context) {
    backward(context, {pair_.loss(0)});
    for (at::Tensor& parameter : pair_.local) parameter.mutable_grad() = at::Tensor();
    pair_.local_loss(0).backward();
  }
  uint64_t calls() const { return group_[0]->statistics().calls_made; }

  Group group_{3};
  AgentGuard guard_;
  Pair pair_;
};

TEST_F(ClipGrad, NormIsThatOfOneProcess) {
  // The order of the parameters differs from the order of the owners.
  std::vector<RRef<at::Tensor>> parameters{pair_.parameters[3], pair_.parameters[0], pair_.parameters[2],
                                           pair_.parameters[1]};
  std::vector<at::Tensor> local{pair_.local[3], pair_.local[0], pair_.local[2], pair_.local[1]};
  for (double type : {2.0, 1.0, 3.0, 0.5, 0.0, kInfinity}) {
    for (double max_norm : {0.1, 1000.0}) {
      Context context;
      run_backward(context);
      const uint64_t before = calls();
      const double norm = clip_grad_norm_(context, parameters, max_norm, type);
      EXPECT_EQ(calls() - before, max_norm < norm ? 4u : 2u) << type;
      EXPECT_EQ(norm, torch::nn::utils::clip_grad_norm_(local, max_norm, type)) << type;
      EXPECT_TRUE(equal(pair_.gradients(context), gradients_of(pair_.local))) << type << " " << max_norm;
    }
  }
}

TEST_F(ClipGrad, OneOwnerNeedsOneCall) {
  const std::vector<RRef<at::Tensor>> parameters{pair_.parameters[0], pair_.parameters[1]};
  const std::vector<at::Tensor> local{pair_.local[0], pair_.local[1]};
  for (double type : {2.0, kInfinity}) {
    Context context;
    run_backward(context);
    const uint64_t before = calls();
    const double norm = clip_grad_norm_(context, parameters, 0.1, type);
    EXPECT_EQ(calls() - before, 1u);
    EXPECT_EQ(norm, torch::nn::utils::clip_grad_norm_(local, 0.1, type));
    EXPECT_TRUE(equal(pair_.gradients(context), gradients_of(pair_.local)));
  }
}

TEST_F(ClipGrad, NanNormIsAnErrorOrMakesTheGradientsNan) {
  std::vector<at::Tensor> values = pair_.values();
  values[2][0] = std::numeric_limits<float>::quiet_NaN();
  pair_.set_values(values);
  {
    at::NoGradGuard no_graph;
    pair_.local[2].copy_(values[2]);
  }
  for (const auto& parameters :
       {pair_.parameters, std::vector<RRef<at::Tensor>>{pair_.parameters[2], pair_.parameters[3]}}) {
    Context context;
    run_backward(context);
    const std::vector<at::Tensor> before = pair_.gradients(context);
    const absl::Status status =
        status_of([&] { clip_grad_norm_(context, parameters, 1, 2, /*error_if_nonfinite=*/true); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("nan"));
    const std::vector<at::Tensor> after = pair_.gradients(context);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(before[i], after[i])) << i;
  }
  Context context;
  run_backward(context);
  EXPECT_TRUE(std::isnan(clip_grad_norm_(context, pair_.parameters, 1)));
  torch::nn::utils::clip_grad_norm_(pair_.local, 1);
  const std::vector<at::Tensor> clipped = pair_.gradients(context);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(clipped[i], pair_.local[i].grad())) << i;
}

TEST_F(ClipGrad, ValuesAreThoseOfOneProcessAfterOneRound) {
  Context context;
  run_backward(context);
  const std::vector<at::Tensor> before = pair_.gradients(context);
  const uint64_t calls_before = calls();
  // The limit is chosen so that some elements are clamped.
  const double limit = before[0].abs().max().item<double>() / 2;
  clip_grad_value_(context, pair_.parameters, limit);
  EXPECT_EQ(calls() - calls_before, 2u);
  EXPECT_FALSE(equal(pair_.gradients(context), before));
  torch::nn::utils::clip_grad_value_(pair_.local, limit);
  EXPECT_TRUE(equal(pair_.gradients(context), gradients_of(pair_.local)));
}

TEST_F(ClipGrad, ParametersWithoutGradientsCountNothing) {
  Context context;
  EXPECT_EQ(clip_grad_norm_(context, pair_.parameters, 1), 0);
  EXPECT_EQ(clip_grad_norm_(context, {}, 1), 0);
  clip_grad_value_(context, pair_.parameters, 1);
  backward(context, {pair_.layers[0].rpc_sync<&Layer::forward_first>(input(0)).sum()});
  const at::Tensor only = pair_.layers[0].rpc_sync<&Layer::gradients>(context.id())[0];
  EXPECT_EQ(clip_grad_norm_(context, pair_.parameters, 1e9), only.norm().item<double>());
  clip_grad_value_(context, pair_.parameters, 0.25);
  const std::vector<at::Tensor> clipped = pair_.layers[0].rpc_sync<&Layer::gradients>(context.id());
  EXPECT_TRUE(torch::equal(clipped[0], only.clamp(-0.25, 0.25)));
  EXPECT_FALSE(clipped[1].defined());
}

TEST_F(ClipGrad, SparseGradientsAreClippedByTheirValues) {
  const at::Tensor table = torch::linspace(-1, 1, 12).view({4, 3}).requires_grad_();
  const std::vector<RRef<at::Tensor>> parameters{RRef<at::Tensor>(table)};
  const at::Tensor rows = torch::tensor({1, 3, 1});
  Context context;
  backward(context, {torch::embedding(table, rows, -1, false, /*sparse=*/true).pow(2).sum()});
  const at::Tensor dense = get_gradients(context).at(table).to_dense();
  EXPECT_FLOAT_EQ(static_cast<float>(clip_grad_norm_(context, parameters, 1)), dense.norm().item<float>());
  EXPECT_TRUE(get_gradients(context).at(table).is_sparse());
  EXPECT_NEAR(get_gradients(context).at(table).to_dense().norm().item<float>(), 1, 1e-5);
  const at::Tensor scaled = get_gradients(context).at(table).to_dense();
  clip_grad_value_(context, parameters, 0.2);
  EXPECT_TRUE(torch::equal(get_gradients(context).at(table).to_dense(), scaled.clamp(-0.2, 0.2)));
}

// Destroying a gradient may run code of the user, here the deleter of its memory. That code may use the
// context.
TEST_F(ClipGrad, OldGradientsAreDestroyedWithoutTheLockOfTheContext) {
  Context context;
  run_backward(context);
  const auto found = value_or_throw(Engine::of(*group_[1]))->contexts().find(context.id());
  ASSERT_TRUE(found.ok()) << found.status();
  const std::shared_ptr<ContextState> state = *found;
  std::atomic<int> deleted{0};
  std::atomic<int> locked{0};
  // It only tries the lock, because a wait for a lock that this thread holds would not end.
  const auto deleter = [&](void*) {
    ++deleted;
    std::thread other([&] {
      if (state->mutex.try_lock()) {
        state->mutex.unlock();
      } else {
        ++locked;
      }
    });
    other.join();
  };
  std::vector<float> memory(1'000, 9);
  {
    MutexLock lock(state->mutex);
    ASSERT_EQ(state->gradients.size(), 2u);
    for (const Gradients::Entry& entry : Gradients(state->gradients)) {
      state->gradients[entry.tensor] = at::from_blob(memory.data(), entry.tensor.sizes(), deleter,
                                                     entry.tensor.options().requires_grad(false));
    }
  }
  clip_grad_value_(context, pair_.parameters, 0.1);
  EXPECT_EQ(deleted, 2);
  EXPECT_EQ(locked, 0);
}

TEST_F(ClipGrad, LimitsBelowZeroAndReleasedContextsAreRefused) {
  int64_t id;
  {
    Context context;
    id = context.id();
    EXPECT_EQ(status_of([&] { clip_grad_norm_(context, pair_.parameters, -1); }).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status_of([&] { clip_grad_value_(context, pair_.parameters, std::nan("")); }).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(status_of([&] { clip_grad_norm_(id, pair_.parameters, 1); }).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace gradwire::autograd
