#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

void expect_error(const absl::Status& status, absl::StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
}

TEST(UnusedParameters, ParametersUsedOnSomeRanksAreAveragedWithZeros) {
  const at::Tensor x = integers({2, 2}, 1);
  const DistributedDataParallelOptions options{.bucket_cap_mb = 1e-9, .find_unused_parameters = true};
  on_replicas<BranchesImpl>(3, options, [&](const Group& group, BranchesImpl& net, auto& model) {
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      // All ranks use the right branch. Only one rank uses the left branch, a different rank in each step.
      model.forward(x, group->rank() == step, true).sum().backward();
      const at::Tensor whole = x.sum(0).expand({2, 2});
      EXPECT_TRUE(at::equal(net.left->weight.grad(), whole / 3)) << net.left->weight.grad();
      EXPECT_TRUE(at::equal(net.right->weight.grad(), whole * 3 / 3));
      EXPECT_FALSE(net.unused->weight.grad().defined());
    }
  });
}

TEST(UnusedParameters, ParametersUnusedOnAllRanksKeepTheirGradient) {
  const at::Tensor x = integers({2, 2}, 1);
  const DistributedDataParallelOptions options{.find_unused_parameters = true};
  on_replicas<BranchesImpl>(3, options, [&](const Group& group, BranchesImpl& net, auto& model) {
    // A different gradient on each rank, with values whose thirds are not exact.
    net.unused->bias.mutable_grad() = at::full({2}, 0.1 + group->rank(), at::kDouble);
    model.forward(x, true, true).sum().backward();
    EXPECT_TRUE(at::equal(net.unused->bias.grad(), at::full({2}, 0.1 + group->rank(), at::kDouble)));
    const at::Tensor left = net.left->weight.grad().clone();
    // The gradient is now a view into a bucket.
    net.left->weight.grad().fill_(0.1);
    model.forward(x, false, true).sum().backward();
    EXPECT_TRUE(at::equal(net.left->weight.grad(), at::full({2, 2}, 0.1, at::kDouble)));
  });
}

TEST(UnusedParameters, GradientsOfNoSyncAreAveragedIfTheNextPassDoesNotUseTheParameter) {
  const at::Tensor x = integers({2, 2}, 1);
  const DistributedDataParallelOptions options{.find_unused_parameters = true};
  on_replicas<BranchesImpl>(2, options, [&](const Group& group, BranchesImpl& net, auto& model) {
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      if (group->rank() == 1) {
        const auto guard = model.no_sync();
        model.forward(x, true, false).sum().backward();
      }
      model.forward(x, false, true).sum().backward();
      EXPECT_TRUE(at::equal(net.left->weight.grad(), x.sum(0).expand({2, 2}) / 2));
    }
  });
}

TEST(UnusedParameters, GradientsOfNoSyncAreAveragedInOnePassOnly) {
  const at::Tensor x = integers({2, 2}, 1);
  const DistributedDataParallelOptions options{.find_unused_parameters = true};
  on_replicas<BranchesImpl>(2, options, [&](const Group& group, BranchesImpl& net, auto& model) {
    if (group->rank() == 1) {
      const auto guard = model.no_sync();
      model.forward(x, true, false).sum().backward();
    }
    model.forward(x, false, true).sum().backward();
    EXPECT_TRUE(at::equal(net.left->weight.grad(), x.sum(0).expand({2, 2}) / 2));
    // No rank has used the left branch since then: each rank keeps its own gradient, without averaging.
    net.left->weight.mutable_grad() = at::full({2, 2}, 0.1 + group->rank(), at::kDouble);
    model.forward(x, false, true).sum().backward();
    EXPECT_TRUE(at::equal(net.left->weight.grad(), at::full({2, 2}, 0.1 + group->rank(), at::kDouble)))
        << net.left->weight.grad();
  });
}

TEST(UnusedParameters, OutputThatTheLossDoesNotUse) {
  struct TwoHeads : torch::nn::Module {
    TwoHeads()
        : a(register_module("a", torch::nn::Linear(2, 2))),
          b(register_module("b", torch::nn::Linear(2, 2))) {}
    std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x) { return {a(x), {b(x)}}; }
    torch::nn::Linear a, b;
  };
  const Ranks ranks(2, kOptions);
  ranks.run([&](const Group& group) {
    auto net = std::make_shared<TwoHeads>();
    DistributedDataParallel model(net, {.group = group, .find_unused_parameters = true});
    for (int step = 0; step < 2; ++step) {
      auto [first, others] = model.forward(at::ones({1, 2}));
      first.sum().backward();
      EXPECT_TRUE(net->a->weight.grad().defined());
      EXPECT_FALSE(net->b->weight.grad().defined());
    }
  });
}

TEST(UnusedParameters, WithoutTheOptionTheNextForwardNamesThem) {
  const at::Tensor x = integers({2, 2}, 1);
  on_replicas<BranchesImpl>(2, {}, [&](const Group&, BranchesImpl&, auto& model) {
    model.forward(x, true, true).sum().backward();
    expect_error(thrown_by([&] { model.forward(x, true, true); }), absl::StatusCode::kFailedPrecondition,
                 {"\"unused.weight\", \"unused.bias\"", "find_unused_parameters"});
    // Evaluation still works.
    const at::NoGradGuard no_grad;
    model.forward(x, true, true);
  });
}

TEST(DataParallelErrors, SecondPassOverAPartIsRefused) {
  const at::Tensor x = integers({2, 2}, 1);
  on_replicas<BranchesImpl>(2, {}, [&](const Group&, BranchesImpl&, auto& model) {
    const at::Tensor y = model.forward(x, true, false).sum();
    y.backward({}, /*retain_graph=*/true);
    expect_error(thrown_by([&] { y.backward(); }), absl::StatusCode::kFailedPrecondition, {"\"left."});
  });
}

TEST(DataParallelErrors, DifferentModulesAreNamedOnAllRanks) {
  const Ranks ranks(3, kOptions);
  for (const absl::Status& status : ranks.results([](const Group& group) {
         torch::nn::Linear linear(group->rank() == 2 ? 4 : 3, 5);
         DistributedDataParallel model(linear, {.group = group});
       })) {
    expect_error(status, absl::StatusCode::kInvalidArgument,
                 {"rank 2", "the parameter \"weight\" Float[5, 3]", "Float[5, 4]"});
  }
}

TEST(DataParallelErrors, DifferentNumbersOfParametersAndOptions) {
  const Ranks ranks(2, kOptions);
  for (const absl::Status& status : ranks.results([](const Group& group) {
         torch::nn::Linear linear(torch::nn::LinearOptions(3, 5).bias(group->rank() == 0));
         DistributedDataParallel model(linear, {.group = group});
       })) {
    expect_error(status, absl::StatusCode::kInvalidArgument,
                 {"\"bias\" Float[5]", "rank 1 has no more entries"});
  }
  for (const absl::Status& status : ranks.results([](const Group& group) {
         torch::nn::Linear linear(3, 5);
         DistributedDataParallel model(linear, {.group = group, .bucket_cap_mb = 1.0 + group->rank()});
       })) {
    expect_error(status, absl::StatusCode::kInvalidArgument, {"rank 1", "bytes"});
  }
}

TEST(DataParallelErrors, InvalidArgumentsAreRefused) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    torch::nn::Linear linear(3, 5);
    const auto make = [&](const DistributedDataParallelOptions& options) {
      return thrown_by([&] { DistributedDataParallel<torch::nn::Linear> model(linear, options); });
    };
    expect_error(make({.group = group, .device_ids = {0, 1}}), absl::StatusCode::kInvalidArgument,
                 {"device_ids"});
    expect_error(make({.group = group, .device_ids = {0}}), absl::StatusCode::kInvalidArgument,
                 {"cuda:0", "\"weight\" is on cpu"});
    expect_error(make({.group = group, .bucket_cap_mb = 0}), absl::StatusCode::kInvalidArgument,
                 {"bucket_cap_mb"});
    expect_error(make({}), absl::StatusCode::kFailedPrecondition, {});
    linear->weight.requires_grad_(false);
    linear->bias.requires_grad_(false);
    expect_error(make({.group = group}), absl::StatusCode::kInvalidArgument, {"requires grad"});
  });
}

// A module with sparse gradients that is not one of libtorch's embeddings.
struct TableImpl : torch::nn::Module {
  TableImpl() : table(register_parameter("table", at::ones({4, 2}))) {}
  at::Tensor forward(const at::Tensor& rows) {
    return at::embedding(table, rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true);
  }
  at::Tensor table;
};

TEST(DataParallelErrors, UnexpectedSparseGradientsAndCreateGraphAreRefused) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    DistributedDataParallel model(std::make_shared<TableImpl>(), {.group = group});
    const at::Tensor loss = model.forward(at::arange(3)).sum();
    expect_error(thrown_by([&] { loss.backward(); }), absl::StatusCode::kInvalidArgument,
                 {"\"table\"", "sparse_parameters"});
  });
  ranks.run([](const Group& group) {
    torch::nn::Linear linear(3, 5);
    DistributedDataParallel model(linear, {.group = group});
    const at::Tensor loss = model.forward(at::ones({1, 3})).square().sum();
    expect_error(thrown_by([&] { loss.backward({}, true, /*create_graph=*/true); }),
                 absl::StatusCode::kInvalidArgument, {"create_graph"});
    // With create_graph a gradient and its parameter hold each other.
    linear->zero_grad();
  });
}

TEST(DataParallelErrors, RankThatFailsEndsThePassOfTheOthers) {
  const Ranks ranks(3, kOptions);
  const std::vector<absl::Status> results = ranks.results([](const Group& group) {
    torch::nn::Linear linear(3, 5);
    DistributedDataParallel model(linear, {.group = group});
    model.forward(at::ones({1, 3})).sum().backward();
    if (group->rank() == 1) {
      group->destroy();
      throw std::runtime_error("no more data");
    }
    const absl::Status status = thrown_by([&] { model.forward(at::ones({1, 3})).sum().backward(); });
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "averaging the gradients")) << status;
    // All later calls report the same error.
    expect_error(thrown_by([&] {
                   model.forward(at::ones({1, 3}));
                 }),
                 absl::StatusCode::kAborted, {"make a new process group"});
  });
  EXPECT_TRUE(results[0].ok()) << results[0];
  EXPECT_FALSE(results[1].ok());
  EXPECT_TRUE(results[2].ok()) << results[2];
}

}  // namespace
}  // namespace gradwire::data_parallel
