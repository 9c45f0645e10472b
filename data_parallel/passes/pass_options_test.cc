// Static graphs, delayed, ignored and sparse parameters, and mixed precision.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <stdexcept>

#include "absl/strings/match.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

constexpr double kOneEach = 1e-9;

TEST(StaticGraph, UnusedParametersKeepTheirGradients) {
  const at::Tensor x = integers({2, 2}, 1);
  on_replicas<BranchesImpl>(
      2, {.bucket_cap_mb = kOneEach, .static_graph = true},
      [&](const Group& group, BranchesImpl& net, auto& model) {
        net.unused->bias.mutable_grad() = at::full({2}, 0.1 + group->rank(), at::kDouble);
        for (int pass = 0; pass < 3; ++pass) {
          net.left->zero_grad();
          // Only rank 1 uses the left branch, in each pass.
          net.right->zero_grad();
          model.forward(x, group->rank() == 1, true).sum().backward();
          const at::Tensor whole = x.sum(0).expand({2, 2});
          EXPECT_TRUE(at::equal(net.left->weight.grad(), whole / 2)) << pass;
          EXPECT_TRUE(at::equal(net.right->weight.grad(), whole)) << pass;
          EXPECT_FALSE(net.unused->weight.grad().defined());
          EXPECT_TRUE(at::equal(net.unused->bias.grad(), at::full({2}, 0.1 + group->rank(), at::kDouble)));
        }
      });
}

TEST(StaticGraph, AnotherGraphIsRefused) {
  const at::Tensor x = integers({2, 2}, 1);
  on_replicas<BranchesImpl>(1, {.static_graph = true}, [&](const Group&, BranchesImpl&, auto& model) {
    model.forward(x, true, true).sum().backward();
    const absl::Status less = thrown_by([&] { model.forward(x, true, false).sum().backward(); });
    EXPECT_EQ(less.code(), absl::StatusCode::kFailedPrecondition) << less;
    EXPECT_TRUE(absl::StrContains(less.message(), "\"right.weight\", \"right.bias\"")) << less;
  });
  on_replicas<BranchesImpl>(1, {.static_graph = true}, [&](const Group&, BranchesImpl&, auto& model) {
    model.forward(x, true, false).sum().backward();
    const absl::Status more = thrown_by([&] { model.forward(x, true, true).sum().backward(); });
    EXPECT_EQ(more.code(), absl::StatusCode::kFailedPrecondition) << more;
    EXPECT_TRUE(absl::StrContains(more.message(), "\"right.")) << more;
  });
}

TEST(StaticGraph, NoSyncAccumulates) {
  const at::Tensor batch = integers({8, 4}, 1);
  on_replicas<NetImpl>(2, {.static_graph = true}, [&](const Group& group, NetImpl& net, auto& model) {
    NetImpl whole;
    fill(whole, 0);
    whole.forward(batch).sum().backward();
    for (int pass = 0; pass < 3; ++pass) {
      net.zero_grad();
      {
        const auto guard = model.no_sync();
        model.forward(share(batch, group)).sum().backward();
      }
      model.forward(share(batch, group)).sum().backward();
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_TRUE(at::equal(gradients_of(net)[i], gradients_of(whole)[i])) << pass << " " << i;
      }
    }
  });
}

TEST(DelayedParameters, PassesMayLeaveThemOut) {
  const at::Tensor x = integers({2, 2}, 1);
  const DistributedDataParallelOptions options{
      .bucket_cap_mb = kOneEach,
      .delayed_parameters = {"left.weight", "left.bias", "unused.weight", "unused.bias"}};
  on_replicas<BranchesImpl>(2, options, [&](const Group& group, BranchesImpl& net, auto& model) {
    for (int pass = 0; pass < 4; ++pass) {
      if (pass != 2) net.zero_grad();
      const at::Tensor before = pass == 2 ? net.left->weight.grad().clone() : at::zeros({2, 2}, at::kDouble);
      // In the last pass no rank uses the left branch.
      model.forward(x, group->rank() == 0 && pass < 3, true).sum().backward();
      const at::Tensor whole = x.sum(0).expand({2, 2});
      EXPECT_TRUE(at::equal(net.left->weight.grad(), before + (pass < 3 ? whole / 2 : whole * 0))) << pass;
      EXPECT_TRUE(at::equal(net.unused->bias.grad(), at::zeros({2}, at::kDouble)));
    }
    EXPECT_EQ(model.reducer().bucket_names().size(), 2u);
  });
}

TEST(DelayedParameters, OtherNamesOnOneRankAreRefused) {
  const Ranks ranks(2, kOptions);
  for (const absl::Status& status : ranks.results([](const Group& group) {
         const char* const name = group->rank() == 0 ? "left.weight" : "right.weight";
         DistributedDataParallel model(std::make_shared<BranchesImpl>(),
                                       {.group = group, .delayed_parameters = {name}});
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "the delayed parameter \"right.weight\"")) << status;
  }
}

TEST(PassOptions, WrongOptionsAreRefused) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    const auto code = [&](DistributedDataParallelOptions options) {
      options.group = group;
      return thrown_by([&] { DistributedDataParallel<NetImpl> model(std::make_shared<NetImpl>(), options); })
          .code();
    };
    EXPECT_EQ(code({.delayed_parameters = {"fourth.weight"}}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.ignored = {"fourth.weight"}}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.sparse_parameters = {"fourth.weight"}}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.first_bucket_cap_mb = 0}), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.delayed_parameters = {"first.weight", "first.bias", "second.weight", "second.bias",
                                           "third.weight", "third.bias"}}),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code({.delayed_parameters = {"first.weight"}, .sparse_parameters = {"first.weight"}}),
              absl::StatusCode::kInvalidArgument);
  });
}

TEST(IgnoredParameters, AreNeitherCopiedNorAveraged) {
  const DistributedDataParallelOptions options{.ignored = {"second.weight"}};
  const at::Tensor batch = integers({4, 4}, 1);
  on_replicas<NetImpl>(2, options, [&](const Group& group, NetImpl& net, auto& model) {
    EXPECT_TRUE(at::equal(net.second->weight, integers({5, 6}, group->rank() + 2)));
    EXPECT_TRUE(at::equal(net.second->bias, integers({5}, 3)));
    model.forward(share(batch, group)).sum().backward();
    at::Tensor third = net.third->bias.grad().clone();
    group->broadcast(third, 0);
    EXPECT_TRUE(at::equal(third, net.third->bias.grad()));
    EXPECT_TRUE(net.second->weight.grad().defined());
  });
}

struct TablesImpl : torch::nn::Module {
  TablesImpl()
      : table(register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true)))),
        bag(register_module("bag", torch::nn::EmbeddingBag(
                                       torch::nn::EmbeddingBagOptions(5, 3).sparse(true).mode(torch::kSum)))),
        last(register_module("last", torch::nn::Linear(3, 2))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& words, bool use_bag = true) {
    at::Tensor h = table(words);
    if (use_bag) h = h + bag(words.remainder(5).unsqueeze(1));
    return last(h);
  }
  torch::nn::Embedding table;
  torch::nn::EmbeddingBag bag;
  torch::nn::Linear last;
};

TEST(SparseGradients, AreAveragedAsSparseTensors) {
  for (const bool unused : {false, true}) {
    const DistributedDataParallelOptions options{.bucket_cap_mb = kOneEach, .find_unused_parameters = unused};
    on_replicas<TablesImpl>(3, options, [&](const Group& group, TablesImpl& net, auto& model) {
      TablesImpl whole;
      fill(whole, 0);
      for (int pass = 0; pass < 3; ++pass) {
        net.zero_grad();
        whole.zero_grad();
        for (int rank = 0; rank < 3; ++rank) {
          const at::Tensor words = at::arange(rank + 1) * (pass + 1) % 6;
          const bool use_bag = !unused || rank == 1;
          const at::Tensor loss =
              (rank == group->rank() ? model.forward(words, use_bag) : at::zeros({1}, at::kDouble)).sum();
          if (rank == group->rank()) loss.backward();
          whole.forward(words, use_bag).sum().backward();
        }
        ASSERT_TRUE(net.table->weight.grad().is_sparse());
        EXPECT_TRUE(net.table->weight.grad().is_coalesced());
        EXPECT_TRUE(
            at::allclose(net.table->weight.grad().to_dense(), whole.table->weight.grad().to_dense() / 3));
        EXPECT_TRUE(at::allclose(net.bag->weight.grad().to_dense(), whole.bag->weight.grad().to_dense() / 3));
        EXPECT_TRUE(at::allclose(net.last->weight.grad(), whole.last->weight.grad() / 3));
      }
    });
  }
}

TEST(SparseGradients, AParameterWithoutDimensionsIsRefused) {
  struct ScaleImpl : torch::nn::Module {
    ScaleImpl() : scale(register_parameter("scale", at::ones({}))) {}
    at::Tensor forward(const at::Tensor& x) { return x * scale; }
    at::Tensor scale;
  };
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    const absl::Status status = thrown_by([&] {
      DistributedDataParallel model(std::make_shared<ScaleImpl>(),
                                    {.group = group, .sparse_parameters = {"scale"}});
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "\"scale\" has none")) << status;
  });
}

TEST(SparseGradients, AccumulateUnderNoSync) {
  on_replicas<TablesImpl>(2, {}, [](const Group& group, TablesImpl& net, auto& model) {
    TablesImpl whole;
    fill(whole, 0);
    for (int rank = 0; rank < 2; ++rank) {
      whole.forward(at::arange(3) + rank).sum().backward();
      whole.forward(at::arange(2)).sum().backward();
    }
    {
      const auto guard = model.no_sync();
      model.forward(at::arange(3) + group->rank()).sum().backward();
    }
    model.forward(at::arange(2)).sum().backward();
    EXPECT_TRUE(at::equal(net.table->weight.grad().to_dense(), whole.table->weight.grad().to_dense() / 2));
  });
}

// float32 versions of the values of a module in bfloat16.
TEST(MixedPrecision, TheOptimizerSeesFullPrecision) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    auto net = std::make_shared<NetImpl>(at::kFloat);
    fill(*net, group->rank());
    DistributedDataParallel model(
        net, {.group = group, .bucket_cap_mb = 1e-4, .mixed_precision = MixedPrecision{}});
    const at::Tensor x = integers({2, 4}, group->rank(), at::kFloat);
    NetImpl whole;
    fill(whole, 0);
    for (int rank = 0; rank < 2; ++rank) whole.forward(integers({2, 4}, rank)).sum().backward();
    for (int pass = 0; pass < 3; ++pass) {
      net->zero_grad();
      const at::Tensor y = model.forward(x);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      EXPECT_EQ(net->first->weight.scalar_type(), at::kBFloat16);
      y.sum().backward();
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(net->parameters()[i].scalar_type(), at::kFloat);
        ASSERT_EQ(gradients_of(*net)[i].scalar_type(), at::kFloat);
        // These small integers and their halves are exact in bfloat16.
        EXPECT_TRUE(at::equal(gradients_of(*net)[i].to(at::kDouble), gradients_of(whole)[i] / 2))
            << i << gradients_of(*net)[i] << gradients_of(whole)[i];
      }
    }
    // Values that bfloat16 cannot represent stay.
    {
      const at::NoGradGuard no_grad;
      net->first->bias.fill_(1.0009765625);
      EXPECT_EQ(model.forward(x).scalar_type(), at::kBFloat16);
    }
    EXPECT_EQ(net->first->bias[0].item<float>(), 1.0009765625f);
  });
}

TEST(MixedPrecision, GradientsAccumulateInFullPrecision) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    auto net = std::make_shared<NetImpl>(at::kFloat);
    fill(*net, 0);
    DistributedDataParallel model(
        net, {.group = group,
              .mixed_precision = MixedPrecision{.reduce_dtype = at::kFloat, .cast_forward_inputs = false}});
    const at::Tensor x = integers({2, 4}, 1, at::kBFloat16);
    model.forward(x).sum().backward();
    const std::vector<at::Tensor> once = gradients_of(*net);
    std::vector<at::Tensor> copies;
    for (const at::Tensor& each : once) copies.push_back(each.clone());
    net->zero_grad();
    {
      const auto guard = model.no_sync();
      model.forward(x).sum().backward();
      EXPECT_EQ(net->first->weight.scalar_type(), at::kFloat);
      EXPECT_EQ(net->first->weight.grad().scalar_type(), at::kFloat);
    }
    model.forward(x).sum().backward();
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(at::equal(gradients_of(*net)[i], copies[i] * 2)) << i;
    }
  });
}

TEST(MixedPrecision, BuffersGetTheirDtypeOnce) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    struct Buffered : torch::nn::Module {
      Buffered()
          : weight(register_parameter("weight", at::ones({2}))),
            offset(register_buffer("offset", at::ones({2}))) {}
      at::Tensor forward(const at::Tensor& x) { return x * weight + offset; }
      at::Tensor weight, offset;
    };
    auto net = std::make_shared<Buffered>();
    DistributedDataParallel model(
        net, {.group = group,
              .mixed_precision = MixedPrecision{.param_dtype = at::kHalf, .buffer_dtype = at::kHalf}});
    EXPECT_EQ(net->offset.scalar_type(), at::kHalf);
    EXPECT_EQ(model.forward(at::ones({2})).scalar_type(), at::kHalf);
  });
}

// Its backward throws.
struct Broken : torch::autograd::Function<Broken> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("broken node");
  }
};

// The parameters of a net in float32, one of which bfloat16 cannot represent.
std::shared_ptr<NetImpl> precise_net() {
  auto net = std::make_shared<NetImpl>(at::kFloat);
  fill(*net, 0);
  const at::NoGradGuard no_grad;
  net->first->bias.fill_(1.0009765625);
  return net;
}

void expect_full_precision(const NetImpl& net) {
  for (const at::Tensor& each : net.parameters()) EXPECT_EQ(each.scalar_type(), at::kFloat);
  EXPECT_EQ(net.first->bias[0].item<float>(), 1.0009765625f);
}

TEST(MixedPrecision, AFailureRestoresTheParameters) {
  const at::Tensor x = integers({2, 4}, 1, at::kFloat);
  using Model = DistributedDataParallel<NetImpl>;
  const std::vector<std::function<void(Model&)>> failures = {
      // A hook.
      [&](Model& model) {
        model.register_comm_hook(
            make_comm_hook([](GradBucket&) -> HookStep { throw std::runtime_error("broken hook"); }));
        model.forward(x).sum().backward();
      },
      // A hook, after the last bucket has started.
      [&](Model& model) {
        model.register_comm_hook(make_comm_hook([](GradBucket&) {
          return HookStep::after({}, []() -> HookStep { throw std::runtime_error("broken step"); });
        }));
        model.forward(x).sum().backward();
      },
      // A node that is not of the replica.
      [&](Model& model) {
        const at::Tensor input = x.clone().requires_grad_();
        model.forward(Broken::apply(input)).sum().backward();
      },
      [&](Model& model) { model.forward(x).sum().backward({}, std::nullopt, /*create_graph=*/true); },
      [&](Model& model) { model.forward(x.narrow(1, 0, 3)); },
      [&](Model& model) {
        const at::NoGradGuard no_grad;
        model.forward(x.narrow(1, 0, 3));
      }};
  const Ranks ranks(1, kOptions);
  ranks.run([&](const Group& group) {
    for (std::size_t i = 0; i < failures.size(); ++i) {
      SCOPED_TRACE(i);
      const auto net = precise_net();
      Model model(net, {.group = group, .bucket_cap_mb = kOneEach, .mixed_precision = MixedPrecision{}});
      EXPECT_FALSE(thrown_by([&] { failures[i](model); }).ok());
      expect_full_precision(*net);
      // The next forward may be refused.
      thrown_by([&] { model.forward(x).sum().backward(); }).IgnoreError();
      expect_full_precision(*net);
    }
  });
}

TEST(MixedPrecision, TheEndOfTheReplicaRestoresTheParameters) {
  const Ranks ranks(1, kOptions);
  ranks.run([&](const Group& group) {
    const auto net = precise_net();
    at::Tensor y;
    {
      DistributedDataParallel model(net, {.group = group, .mixed_precision = MixedPrecision{}});
      y = model.forward(integers({2, 4}, 1, at::kFloat));
      EXPECT_EQ(net->first->bias.scalar_type(), at::kBFloat16);
    }
    expect_full_precision(*net);
  });
}

TEST(MixedPrecision, OtherForwardsMayRunBeforeBackward) {
  const at::Tensor x = integers({2, 4}, 1, at::kFloat);
  const Ranks ranks(1, kOptions);
  ranks.run([&](const Group& group) {
    const auto net = precise_net(), plain = precise_net();
    const DistributedDataParallelOptions options{.group = group, .mixed_precision = MixedPrecision{}};
    DistributedDataParallel model(net, options), other(plain, options);
    const at::Tensor y = model.forward(x).sum();
    {
      const at::NoGradGuard no_grad;
      EXPECT_EQ(model.forward(x).scalar_type(), at::kBFloat16);
    }
    EXPECT_FALSE(thrown_by([&] { model.forward(x.narrow(1, 0, 3)); }).ok());
    y.backward();
    other.forward(x).sum().backward();
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(at::equal(gradients_of(*net)[i], gradients_of(*plain)[i])) << i;
    }
    expect_full_precision(*net);
  });
}

struct WordsImpl : torch::nn::Module {
  WordsImpl()
      : table(
            register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true)))) {}
  at::Tensor forward(const at::Tensor& words) { return table(words); }
  torch::nn::Embedding table;
};

// Row 0 is used 257 times in each step, a number that bfloat16 cannot represent.
TEST(MixedPrecision, SparseGradientsAreReducedInReduceDtype) {
  const DistributedDataParallelOptions options{.mixed_precision = MixedPrecision{.reduce_dtype = at::kFloat}};
  on_replicas<WordsImpl>(2, options, [](const Group& group, WordsImpl& net, auto& model) {
    const auto expect_row = [&](float want) {
      const at::Tensor grad = net.table->weight.grad();
      ASSERT_TRUE(grad.is_sparse());
      EXPECT_EQ(grad.scalar_type(), at::kFloat);
      EXPECT_EQ(grad.to_dense()[0][1].template item<float>(), want) << grad;
    };
    {
      const auto guard = model.no_sync();
      model.forward(at::zeros({257}, at::kLong)).sum().backward();
    }
    model.forward(at::zeros({257}, at::kLong)).sum().backward();
    expect_row(514);
    {
      // A rank without data contributes no rows, in the same dtype.
      const Join join = model.join();
      for (int step = 0; step < 1 + group->rank(); ++step) {
        net.zero_grad();
        model.forward(at::zeros({257}, at::kLong)).sum().backward();
        expect_row(step == 0 ? 257 : 128.5);
      }
    }
    expect_row(128.5);
  });
}

TEST(MixedPrecision, SparseGradientsInLowPrecisionBecomeFloat32) {
  on_replicas<WordsImpl>(2, {.mixed_precision = MixedPrecision{}},
                         [](const Group& group, WordsImpl& net, auto& model) {
                           model.forward(at::full({2}, group->rank(), at::kLong)).sum().backward();
                           const at::Tensor grad = net.table->weight.grad();
                           EXPECT_EQ(grad.scalar_type(), at::kFloat);
                           EXPECT_EQ(grad.to_dense()[1][0].template item<float>(), 1);
                         });
}

}  // namespace
}  // namespace gradwire::data_parallel
