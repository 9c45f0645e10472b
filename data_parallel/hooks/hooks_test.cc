#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/data_parallel/hooks/optimizer_in_backward.h"
#include "gradwire/data_parallel/hooks/post_local_sgd_hook.h"
#include "gradwire/data_parallel/hooks/power_sgd_hook.h"
#include "gradwire/data_parallel/hooks/stock_hooks.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

// Each parameter has its own bucket.
constexpr double kOneEach = 1e-9;

// Reads what `from` saves into `to`.
void copy_state(const CommHook& from, CommHook& to) {
  torch::serialize::OutputArchive out;
  from.save(out);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  to.load(in);
}

// One training step with float32 data; returns the gradients.
template <class Model>
std::vector<at::Tensor> step(const Group& group, NetImpl& net, Model& model, int64_t seed) {
  net.zero_grad();
  const at::Tensor x = integers({4, 4}, seed + 10 * group->rank(), at::kFloat) * 0.37;
  model.forward(x).square().mean().backward();
  std::vector<at::Tensor> copies;
  for (const at::Tensor& each : gradients_of(net)) copies.push_back(each.clone());
  return copies;
}

std::shared_ptr<NetImpl> float_net(int64_t seed = 0) {
  auto net = std::make_shared<NetImpl>(at::kFloat);
  fill(*net, seed);
  return net;
}

TEST(CommHook, GetsTheBucketsInOrderAndItsResultBecomesTheGradients) {
  on_replicas<NetImpl>(2, {.bucket_cap_mb = kOneEach}, [](const Group& group, NetImpl& net, auto& model) {
    std::vector<std::size_t> indices;
    std::vector<bool> last;
    model.register_comm_hook(group, [&](const Group&, GradBucket& bucket) -> HookStep {
      indices.push_back(bucket.index());
      last.push_back(bucket.is_last());
      EXPECT_EQ(bucket.parameters().size(), 1u);
      EXPECT_EQ(bucket.gradients()[0].sizes(), bucket.parameters()[0].sizes());
      EXPECT_TRUE(bucket.gradients()[0].is_alias_of(bucket.buffer()));
      EXPECT_EQ(bucket.flat_gradients()[0].numel(), bucket.buffer().numel());
      return at::full_like(bucket.buffer(), 3);
    });
    const at::Tensor x = integers({2, 4}, 1);
    model.forward(x).sum().backward();
    EXPECT_EQ(indices, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(last, (std::vector<bool>{false, false, false, false, false, true}));
    for (const at::Tensor& each : gradients_of(net)) EXPECT_TRUE(at::equal(each, at::full_like(each, 3)));
  });
}

TEST(CommHook, MayReturnAFuture) {
  on_replicas<NetImpl>(2, {.bucket_cap_mb = kOneEach}, [](const Group& group, NetImpl& net, auto& model) {
    model.register_comm_hook(make_comm_hook([&group](GradBucket& bucket) {
      const at::Tensor flat = bucket.buffer();
      return group->all_reduce_async(flat)->future().then([flat](int) { return flat * 10; });
    }));
    const at::Tensor x = integers({2, 4}, 1);
    NetImpl alone;
    fill(alone, 0);
    for (int pass = 0; pass < 2; ++pass) {
      net.zero_grad();
      alone.zero_grad();
      model.forward(x).sum().backward();
      alone.forward(x).sum().backward();
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_TRUE(at::equal(gradients_of(net)[i], gradients_of(alone)[i] * 20)) << i;
      }
    }
  });
}

TEST(CommHook, LaterStepsOfAllBucketsStartCollectivesInTheSameOrder) {
  on_replicas<NetImpl>(3, {.bucket_cap_mb = kOneEach}, [](const Group& group, NetImpl& net, auto& model) {
    // Each bucket averages in three steps. If the steps of two buckets were mixed up, the sizes would differ.
    model.register_comm_hook(make_comm_hook([&group](GradBucket& bucket) {
      const at::Tensor flat = bucket.buffer();
      return HookStep::after({group->all_reduce_async(flat)}, [&group, flat] {
        return HookStep::locally_after({group->all_reduce_async(flat)}, [&group, flat] {
          flat.div_(27);
          return HookStep::after({}, [&group, flat] {
            return HookStep::locally_after({group->all_reduce_async(flat)},
                                           [flat] { return HookStep(flat); });
          });
        });
      });
    }));
    const at::Tensor x = integers({2, 4}, 1);
    NetImpl alone;
    fill(alone, 0);
    alone.forward(x).sum().backward();
    model.forward(x).sum().backward();
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(at::allclose(gradients_of(net)[i], gradients_of(alone)[i])) << i;
    }
  });
}

TEST(CommHook, AWrongResultAndAnExceptionEndThePass) {
  on_replicas<NetImpl>(1, {}, [](const Group&, NetImpl&, auto& model) {
    model.register_comm_hook(make_comm_hook([](GradBucket&) -> HookStep { return at::ones({2}); }));
    EXPECT_EQ(thrown_by([&] { model.register_comm_hook(noop_hook()); }).code(),
              absl::StatusCode::kFailedPrecondition);
    const absl::Status status = thrown_by([&] { model.forward(integers({2, 4}, 1)).sum().backward(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "got 2 elements, expected")) << status;
    EXPECT_EQ(thrown_by([&] { model.forward(integers({2, 4}, 1)); }).code(), absl::StatusCode::kAborted);
  });
  on_replicas<NetImpl>(1, {}, [](const Group&, NetImpl&, auto& model) {
    model.register_comm_hook(
        make_comm_hook([](GradBucket&) -> HookStep { throw std::runtime_error("broken hook"); }));
    const absl::Status status = thrown_by([&] { model.forward(integers({2, 4}, 1)).sum().backward(); });
    EXPECT_TRUE(absl::StrContains(status.message(), "broken hook")) << status;
  });
}

TEST(CommHook, TheNewBufferOfABucketHasTheSameSize) {
  GradBucket bucket(0, true, at::zeros({6}), {at::zeros({2, 3})});
  EXPECT_EQ(thrown_by([&] { bucket.set_buffer(at::zeros({5})); }).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] {
              bucket.set_buffer(at::zeros({2, 3}));
            }).code(),
            absl::StatusCode::kInvalidArgument);
  bucket.set_buffer(at::zeros({6}, at::kHalf));
  EXPECT_EQ(bucket.gradients()[0].scalar_type(), at::kHalf);
}

TEST(PowerSgdHook, AnApproximationOfFullRankIsTheAverage) {
  for (const bool batched : {false, true}) {
    for (const bool whole : {false, true}) {
      const Ranks ranks(3, kOptions);
      ranks.run([&](const Group& group) {
        const auto net = float_net(), plain = float_net();
        DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = 1e-4});
        DistributedDataParallel other(plain, {.group = group, .bucket_cap_mb = 1e-4});
        const auto hook =
            std::make_shared<PowerSgdHook>(PowerSgdOptions{.group = group,
                                                           .matrix_approximation_rank = 64,
                                                           .start_power_sgd_iter = 2,
                                                           .min_compression_rate = 0.1,
                                                           .orthogonalization_epsilon = 0,
                                                           .batch_tensors_with_same_shape = batched,
                                                           .whole_bucket = whole});
        model.register_comm_hook(hook);
        for (int64_t pass = 0; pass < 4; ++pass) {
          const auto got = step(group, *net, model, pass), want = step(group, *plain, other, pass);
          for (std::size_t i = 0; i < got.size(); ++i) {
            EXPECT_TRUE(at::allclose(got[i], want[i], 1e-3, 1e-4))
                << pass << " " << i << " " << batched << whole << "\n"
                << got[i] << want[i];
          }
        }
        EXPECT_GT(hook->elements_before(), 0);
        EXPECT_GT(hook->elements_after(), 0);
      });
    }
  }
}

TEST(PowerSgdHook, ErrorFeedbackAddsUpToTheAverage) {
  const Ranks ranks(2, kOptions);
  ranks.run([&](const Group& group) {
    const auto net = float_net(), plain = float_net();
    DistributedDataParallel model(net, {.group = group}), other(plain, {.group = group});
    model.register_comm_hook(std::make_shared<PowerSgdHook>(
        PowerSgdOptions{.group = group, .start_power_sgd_iter = 2, .min_compression_rate = 0.1}));
    at::Tensor sum = at::zeros({6, 4}), want = at::zeros({6, 4});
    // The gradients are equal in each pass, so what the compression loses comes later.
    for (int pass = 0; pass < 60; ++pass) {
      sum += step(group, *net, model, 1)[0];
      want += step(group, *plain, other, 1)[0];
    }
    EXPECT_LT((sum - want).norm().item<float>(), 0.05 * want.norm().item<float>()) << sum << want;
  });
}

TEST(PowerSgdHook, ASavedStateContinuesWithTheSameNumbers) {
  const Ranks ranks(2, kOptions);
  ranks.run([&](const Group& group) {
    for (const bool warm_start : {true, false}) {
      const PowerSgdOptions options{
          .group = group, .start_power_sgd_iter = 2, .min_compression_rate = 0.1, .warm_start = warm_start};
      const auto net = float_net(), later = float_net();
      const auto hook = std::make_shared<PowerSgdHook>(options),
                 loaded = std::make_shared<PowerSgdHook>(options);
      DistributedDataParallel model(net, {.group = group}), other(later, {.group = group});
      model.register_comm_hook(hook);
      for (int64_t pass = 0; pass < 5; ++pass) step(group, *net, model, pass);
      copy_state(*hook, *loaded);
      other.register_comm_hook(loaded);
      EXPECT_EQ(loaded->iteration(), hook->iteration());
      for (int64_t pass = 5; pass < 8; ++pass) {
        const auto want = step(group, *net, model, pass), got = step(group, *later, other, pass);
        for (std::size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(at::equal(got[i], want[i])) << pass << " " << i;
      }
    }
  });
}

TEST(PowerSgdHook, WrongOptionsAndArchivesAreRefused) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    const auto code = [](PowerSgdOptions options) {
      return thrown_by([&] { PowerSgdHook hook(std::move(options)); }).code();
    };
    EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.group = group, .matrix_approximation_rank = 0}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.group = group, .start_power_sgd_iter = 1}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.group = group, .min_compression_rate = 0}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.group = group, .orthogonalization_epsilon = -1}), absl::StatusCode::kInvalidArgument);
    PowerSgdHook hook({.group = group});
    EXPECT_EQ(thrown_by([&] { copy_state(*noop_hook(), hook); }).code(), absl::StatusCode::kInvalidArgument);
  });
}

TEST(PostLocalSgdHook, AveragesOverTheSubgroupLater) {
  const Ranks ranks(4, kOptions);
  ranks.run([](const Group& group) {
    const auto low = group->new_group({0, 1}), high = group->new_group({2, 3});
    const auto mine = group->rank() < 2 ? low : high;
    const PostLocalSgdOptions options{.group = group, .subgroup = mine, .start_local_sgd_iter = 2};
    const auto hook = std::make_shared<PostLocalSgdHook>(options);
    const auto net = std::make_shared<NetImpl>();
    fill(*net, 0);
    DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = 1e-4});
    model.register_comm_hook(hook);
    for (int pass = 0; pass < 4; ++pass) {
      net->zero_grad();
      model.forward(integers({2, 4}, group->rank())).sum().backward();
      NetImpl all;
      fill(all, 0);
      const int first = pass < 2 || group->rank() < 2 ? 0 : 2, last = pass < 2 || group->rank() >= 2 ? 4 : 2;
      for (int rank = first; rank < last; ++rank) all.forward(integers({2, 4}, rank)).sum().backward();
      EXPECT_TRUE(at::equal(net->third->weight.grad(), all.third->weight.grad() / (last - first))) << pass;
    }
    PostLocalSgdHook loaded(options);
    copy_state(*hook, loaded);
    EXPECT_EQ(loaded.iteration(), 2);
    EXPECT_EQ(thrown_by([&] { PostLocalSgdHook wrong({}); }).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(thrown_by([&] { PostLocalSgdHook wrong({.group = group, .start_local_sgd_iter = -1}); }).code(),
              absl::StatusCode::kInvalidArgument);
  });
}

TEST(StockHooks, NoGroupAndNoHookToWrapAreRefused) {
  using Make = std::shared_ptr<CommHook> (*)();
  for (const Make make : {
           Make([] { return allreduce_hook(nullptr); }),
           Make([] { return fp16_compress_hook(nullptr); }),
           Make([] { return bf16_compress_hook(nullptr); }),
           Make([] { return quantization_pertensor_hook(nullptr); }),
           Make([] { return quantization_perchannel_hook(nullptr, 4); }),
       }) {
    const absl::Status status = status_of([&] { make(); });
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "got no group")) << status;
  }
  for (const Make make : {
           Make([] { return fp16_compress_wrapper(nullptr); }),
           Make([] { return bf16_compress_wrapper(nullptr); }),
       }) {
    const absl::Status status = status_of([&] { make(); });
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "got no hook")) << status;
  }
}

TEST(StockHooks, QuantizationRefusesNoChannel) {
  const absl::Status status = status_of([] { quantization_perchannel_hook(nullptr, 0); });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "channel_size must be positive, got 0")) << status;
}

// The bucket of such a parameter has no elements, and so no range of values.
TEST(StockHooks, QuantizationOfAParameterWithoutElements) {
  struct EmptyImpl : torch::nn::Module {
    EmptyImpl()
        : empty(register_parameter("empty", at::zeros({0, 3}))),
          weight(register_parameter("weight", at::ones({2}))) {}
    at::Tensor forward(const at::Tensor& x) { return (x * weight).sum() + empty.sum(); }
    at::Tensor empty, weight;
  };
  for (const bool channels : {false, true}) {
    const DistributedDataParallelOptions options{.bucket_cap_mb = kOneEach};
    on_replicas<EmptyImpl>(2, options, [&](const Group& group, EmptyImpl& net, auto& model) {
      model.register_comm_hook(channels ? quantization_perchannel_hook(group)
                                        : quantization_pertensor_hook(group));
      for (int pass = 0; pass < 2; ++pass) {
        net.zero_grad();
        model.forward(at::ones({2})).backward();
        EXPECT_TRUE(at::allclose(net.weight.grad(), at::ones({2})));
        EXPECT_EQ(net.empty.grad().sizes(), (std::vector<int64_t>{0, 3}));
      }
    });
  }
}

TEST(OptimizerInBackward, FreesGradientsAndKeepsItsState) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    const auto make = [&] {
      return std::make_shared<OptimizerInBackward>(allreduce_hook(group), [](const at::Tensor& parameter) {
        return std::make_unique<torch::optim::SGD>(std::vector{parameter},
                                                   torch::optim::SGDOptions(0.125).momentum(0.5));
      });
    };
    const auto hook = make(), loaded = make();
    const auto net = std::make_shared<NetImpl>(), later = std::make_shared<NetImpl>();
    fill(*net, 0);
    DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = kOneEach});
    model.register_comm_hook(hook);
    // The buckets of the first pass may complete in any order.
    const std::vector<at::Tensor> trained = net->parameters();
    for (std::size_t i = trained.size(); i-- > 0;) hook->optimizer_of(trained[i]);
    const at::Tensor x = integers({2, 4}, group->rank());
    for (int pass = 0; pass < 3; ++pass) model.forward(x).sum().backward();
    for (const at::Tensor& each : net->parameters()) EXPECT_FALSE(each.grad().defined());

    {
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < 6; ++i) later->parameters()[i].copy_(net->parameters()[i]);
    }
    DistributedDataParallel other(later, {.group = group, .bucket_cap_mb = kOneEach});
    EXPECT_EQ(thrown_by([&] { copy_state(*hook, *loaded); }).code(), absl::StatusCode::kInvalidArgument);
    // The state has the optimizers in the order in which they were made.
    const std::vector<at::Tensor> all = later->parameters();
    for (std::size_t i = all.size(); i-- > 0;) loaded->optimizer_of(all[i]);
    copy_state(*hook, *loaded);
    other.register_comm_hook(loaded);
    model.forward(x).sum().backward();
    other.forward(x).sum().backward();
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(at::equal(all[i], net->parameters()[i])) << i;
  });
}

TEST(OptimizerInBackward, MixedPrecisionStepsInFullPrecision) {
  for (const std::optional<at::ScalarType> reduce :
       {std::optional<at::ScalarType>(), std::optional(at::kFloat)}) {
    const Ranks ranks(2, kOptions);
    ranks.run([&](const Group& group) {
      const auto net = std::make_shared<NetImpl>(at::kFloat), plain = std::make_shared<NetImpl>(at::kFloat);
      fill(*net, 0);
      fill(*plain, 0);
      const DistributedDataParallelOptions options{.group = group,
                                                   .bucket_cap_mb = kOneEach,
                                                   .mixed_precision = MixedPrecision{.reduce_dtype = reduce}};
      DistributedDataParallel model(net, options), other(plain, options);
      const auto sgd = torch::optim::SGDOptions(0.001).momentum(0.5);
      torch::optim::SGD whole(plain->parameters(), sgd);
      const auto hook =
          std::make_shared<OptimizerInBackward>(allreduce_hook(group), [&](const at::Tensor& parameter) {
            return std::make_unique<torch::optim::SGD>(std::vector{parameter}, sgd);
          });
      model.register_comm_hook(hook);
      other.register_comm_hook(allreduce_hook(group));
      for (int pass = 0; pass < 4; ++pass) {
        const at::Tensor x = integers({2, 4}, pass + group->rank(), at::kFloat);
        plain->zero_grad();
        model.forward(x).sum().backward();
        other.forward(x).sum().backward();
        whole.step();
        for (std::size_t i = 0; i < 6; ++i) {
          ASSERT_EQ(net->parameters()[i].scalar_type(), at::kFloat);
          EXPECT_TRUE(at::equal(net->parameters()[i], plain->parameters()[i])) << i;
          EXPECT_FALSE(net->parameters()[i].grad().defined());
        }
      }
      // The values have more bits than bfloat16 has.
      EXPECT_FALSE(at::equal(net->first->weight, net->first->weight.to(at::kBFloat16).to(at::kFloat)));
    });
  }
}

TEST(OptimizerInBackward, StepsOnlyTheGivenParameters) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    const auto net = std::make_shared<NetImpl>();
    fill(*net, 0);
    DistributedDataParallel model(net, {.group = group});
    model.register_comm_hook(std::make_shared<OptimizerInBackward>(
        noop_hook(),
        [](const at::Tensor& parameter) {
          return std::make_unique<torch::optim::SGD>(std::vector{parameter}, torch::optim::SGDOptions(1));
        },
        std::vector<at::Tensor>{net->third->bias}));
    const at::Tensor before = net->third->bias.detach().clone(), other = net->third->weight.detach().clone();
    model.forward(integers({2, 4}, 1)).sum().backward();
    EXPECT_TRUE(at::equal(net->third->bias, before - 2));
    EXPECT_TRUE(at::equal(net->third->weight, other));
    EXPECT_FALSE(net->third->bias.grad().defined());
    EXPECT_TRUE(net->third->weight.grad().defined());
  });
}

}  // namespace
}  // namespace gradwire::data_parallel
