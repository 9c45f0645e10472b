#include "gradwire/data_parallel/sync_batch_norm/sync_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include "absl/strings/match.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

// The rows of each rank, and its part of a tensor of all rows.
const std::vector<std::vector<int64_t>> kRows = {{3, 5, 0}, {1, 1, 1}, {4, 4, 4}};

at::Tensor part(const at::Tensor& whole, const std::vector<int64_t>& rows, int rank) {
  int64_t first = 0;
  for (int i = 0; i < rank; ++i) first += rows[static_cast<std::size_t>(i)];
  return whole.narrow(0, first, rows[static_cast<std::size_t>(rank)]);
}

int64_t total(const std::vector<int64_t>& rows) { return rows[0] + rows[1] + rows[2]; }

void expect_close(const at::Tensor& got, const at::Tensor& want, double tolerance = 1e-10) {
  EXPECT_TRUE(at::allclose(got, want, tolerance, tolerance)) << got << want;
}

// Compares with libtorch's batch norm over the rows of all ranks.
template <class MakeSynchronized>
void expect_whole_batch(const std::vector<int64_t>& sizes, at::ScalarType dtype, double tolerance,
                        const torch::nn::BatchNormOptions& options, MakeSynchronized make) {
  for (const std::vector<int64_t>& rows : kRows) {
    std::vector<int64_t> shape = {total(rows), options.num_features()};
    shape.insert(shape.end(), sizes.begin(), sizes.end());
    at::manual_seed(5);
    // A mean that is large against the deviation.
    const at::Tensor input = (at::randn(shape, at::kDouble) + 100).to(dtype);
    const at::Tensor gradient = at::randn(shape, at::kDouble).to(dtype);
    const Ranks ranks(3, kOptions);
    ranks.run([&](const Group& group) {
      auto [norm, whole] = make(group);
      for (int step = 0; step < 2; ++step) {
        const at::Tensor x = part(input, rows, group->rank()).detach().clone().requires_grad_();
        const at::Tensor all = input.detach().clone().requires_grad_();
        const at::Tensor y = norm->forward(x), want = whole->forward(all);
        expect_close(y, part(want, rows, group->rank()), tolerance);
        y.backward(part(gradient, rows, group->rank()));
        want.backward(gradient);
        expect_close(x.grad(), part(all.grad(), rows, group->rank()), tolerance * 10);
      }
      if (options.affine()) {
        at::Tensor weight = norm->weight.grad().clone(), bias = norm->bias.grad().clone();
        group->all_reduce(weight);
        group->all_reduce(bias);
        expect_close(weight, whole->weight.grad(), tolerance * 10);
        expect_close(bias, whole->bias.grad(), tolerance * 10);
      }
      if (options.track_running_stats()) {
        expect_close(norm->running_mean, whole->running_mean, tolerance);
        expect_close(norm->running_var, whole->running_var, tolerance);
        EXPECT_EQ(norm->num_batches_tracked.template item<int64_t>(), 2);
      }
      norm->eval();
      whole->eval();
      // Without running statistics, evaluation uses those of the input, here of all ranks.
      expect_close(norm->forward(part(input, rows, group->rank())),
                   part(whole->forward(input), rows, group->rank()), tolerance);
    });
  }
}

template <class Norm>
void prepare(Norm& norm, at::ScalarType dtype) {
  norm.to(dtype);
  const at::NoGradGuard no_grad;
  if (!norm.weight.defined()) return;
  norm.weight.copy_(at::arange(norm.weight.numel()).add(1));
  norm.bias.copy_(at::arange(norm.bias.numel()).sub(1));
}

template <class Whole>
auto module_of(const torch::nn::BatchNormOptions& options, at::ScalarType dtype) {
  return [options, dtype](const Group& group) {
    SyncBatchNorm norm(options, group);
    Whole whole(options);
    prepare(*norm, dtype);
    prepare(*whole, dtype);
    return std::pair(norm, whole);
  };
}

TEST(SyncBatchNorm, NormalisesAsTheWholeBatch) {
  const torch::nn::BatchNormOptions options(3);
  expect_whole_batch({}, at::kDouble, 1e-9, options, module_of<torch::nn::BatchNorm1d>(options, at::kDouble));
  expect_whole_batch({4, 2}, at::kDouble, 1e-9, options,
                     module_of<torch::nn::BatchNorm2d>(options, at::kDouble));
  expect_whole_batch({4, 2}, at::kFloat, 1e-3, options,
                     module_of<torch::nn::BatchNorm2d>(options, at::kFloat));
  expect_whole_batch({2, 3, 2}, at::kDouble, 1e-9, options,
                     module_of<torch::nn::BatchNorm3d>(options, at::kDouble));
}

TEST(SyncBatchNorm, WithoutWeightsMomentumOrRunningStatistics) {
  const auto plain = torch::nn::BatchNormOptions(2).affine(false);
  expect_whole_batch({3}, at::kDouble, 1e-9, plain, module_of<torch::nn::BatchNorm1d>(plain, at::kDouble));
  const auto average = torch::nn::BatchNormOptions(2).momentum(std::nullopt);
  expect_whole_batch({3}, at::kDouble, 1e-9, average,
                     module_of<torch::nn::BatchNorm1d>(average, at::kDouble));
  const auto untracked = torch::nn::BatchNormOptions(2).track_running_stats(false);
  expect_whole_batch({3}, at::kDouble, 1e-9, untracked,
                     module_of<torch::nn::BatchNorm1d>(untracked, at::kDouble));
}

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl()
      : conv(register_module("conv", torch::nn::Conv2d(1, 2, 2))),
        norm(register_module("norm", torch::nn::BatchNorm2d(2))),
        rest(register_module("rest",
                             torch::nn::Sequential(torch::nn::Conv2d(2, 2, 1), torch::nn::BatchNorm2d(2)))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return rest->forward(norm(conv(x))); }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Sequential rest;
};

TEST(ConvertSyncBatchNorm, ConvertsMembersAndContainersInPlace) {
  at::manual_seed(7);
  const at::Tensor input = at::randn({8, 1, 3, 3}, at::kDouble);
  const Ranks ranks(2, kOptions);
  std::vector<at::Tensor> initial;
  {
    ConvNetImpl net;
    for (const at::Tensor& each : net.parameters()) initial.push_back(each.detach());
  }
  ranks.run([&](const Group& group) {
    auto net = std::make_shared<ConvNetImpl>(), whole = std::make_shared<ConvNetImpl>();
    {
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < initial.size(); ++i) {
        net->parameters()[i].copy_(initial[i]);
        whole->parameters()[i].copy_(initial[i]);
      }
    }
    EXPECT_EQ(convert_sync_batchnorm(*net, group), (std::vector<std::string>{"norm", "rest.1"}));
    DistributedDataParallel model(net, {.group = group});
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      whole->zero_grad();
      model.forward(share(input, group)).square().mean().backward();
      whole->forward(input).square().mean().backward();
      for (std::size_t i = 0; i < initial.size(); ++i) {
        expect_close(net->parameters()[i].grad(), whole->parameters()[i].grad(), 1e-9);
      }
      expect_close(net->norm->running_var, whole->norm->running_var);
    }
    net->eval();
    whole->eval();
    // In evaluation nothing is sent, so one rank may run it alone.
    if (group->rank() == 1) expect_close(net->forward(input), whole->forward(input));
  });
}

TEST(SyncBatchNorm, WrongInputsAreRefused) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(2), group);
    EXPECT_EQ(thrown_by([&] { norm->forward(at::ones({3})); }).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(thrown_by([&] {
                norm->forward(at::ones({3, 2}, at::kLong));
              }).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(thrown_by([&] { norm->forward(at::ones({3, 4})); }).code(), absl::StatusCode::kInvalidArgument);
    // One value per channel has no variance.
    EXPECT_EQ(thrown_by([&] { norm->forward(at::ones({1, 2})); }).code(), absl::StatusCode::kInvalidArgument);
    torch::nn::BatchNorm1d bare(torch::nn::BatchNormOptions(2).affine(false).track_running_stats(false));
    EXPECT_EQ(thrown_by([&] { convert_sync_batchnorm(*bare, group); }).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(thrown_by([] { SyncBatchNorm alone(torch::nn::BatchNormOptions(2)); }).code(),
              absl::StatusCode::kFailedPrecondition);
  });
}

// The sum of the gradients is larger than the largest half.
TEST(SyncBatchNorm, TheGradientOfTheBiasHasTheDtypeOfTheBias) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(1), group);
    const at::Tensor x = at::arange(70000).remainder(7).to(at::kHalf).unsqueeze(1);
    norm->forward(x).backward(at::ones({70000, 1}, at::kHalf));
    ASSERT_EQ(norm->bias.grad().scalar_type(), at::kFloat);
    EXPECT_EQ(norm->bias.grad().item<float>(), 70000);
  });
}

TEST(ConvertSyncBatchNorm, ADeviceWithoutCollectivesIsRefused) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    torch::nn::BatchNorm1d norm(2);
    norm->weight = at::ones({2}, at::device(at::kMeta));
    const absl::Status status = thrown_by([&] { convert_sync_batchnorm(*norm, group); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "on meta")) << status;
  });
}

// A rank without data runs no forward, and so cannot take part in its collectives.
TEST(SyncBatchNorm, JoinIsRefused) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    for (const bool converted : {false, true}) {
      torch::nn::Sequential net;
      if (converted) {
        net->push_back(torch::nn::BatchNorm1d(2));
        convert_sync_batchnorm(*net, group);
      } else {
        net->push_back(SyncBatchNorm(torch::nn::BatchNormOptions(2), group));
      }
      DistributedDataParallel model(net, {.group = group});
      const absl::Status status = thrown_by([&] { Join join = model.join(); });
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "\"0\"")) << status;
      // The scope was not made.
      model.forward(at::arange(6.0).view({3, 2})).sum().backward();
      { const Join join = model.join({.enable = false}); }
      net->eval();
      const Join join = model.join();
    }
  });
}

}  // namespace
}  // namespace gradwire::data_parallel
