#include "gradwire/data_parallel/distributed_data_parallel.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include <set>
#include <string>

#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

// The expected average over `ranks` ranks, computed by one replica from the whole batch.
std::vector<at::Tensor> expected(const at::Tensor& batch, int64_t seed, int ranks) {
  NetImpl net;
  fill(net, seed);
  net.forward(batch).sum().backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& each : gradients_of(net)) gradients.push_back(at::div(each, ranks));
  return gradients;
}

void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].defined()) << i;
    EXPECT_TRUE(at::equal(got[i], want[i])) << i << "\n" << got[i] << "\n" << want[i];
  }
}

TEST(DistributedDataParallel, GradientsEqualThoseOfTheWholeBatch) {
  for (int size = 1; size <= 4; ++size) {
    for (double cap : {25.0, 200.0 / (1 << 20), 1e-9}) {
      SCOPED_TRACE(std::to_string(size) + " ranks, MiB: " + std::to_string(cap));
      const Ranks ranks(size, kOptions);
      const at::Tensor batch = integers({12, 4}, 1);
      ranks.run([&](const Group& group) {
        Net net;
        fill(*net, group->rank());
        DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = cap});
        // Several steps, because the buckets are arranged again after the first pass.
        for (int step = 0; step < 3; ++step) {
          net->zero_grad();
          model.forward(share(batch, group)).sum().backward();
          expect_equal(gradients_of(*net), expected(batch, 0, size));
        }
        EXPECT_EQ(model.reducer().bucket_names().size(), cap == 25.0 ? 1 : cap == 1e-9 ? 6 : 2);
      });
    }
  }
}

TEST(DistributedDataParallel, StepsStayIdenticalOnAllRanks) {
  const Ranks ranks(3, kOptions);
  at::manual_seed(1);
  const at::Tensor batches = at::randn({8, 12, 4});
  const at::Tensor initial = at::randn({3, 100});
  std::vector<std::vector<at::Tensor>> ended(3);
  ranks.run([&](const Group& group) {
    auto net = std::make_shared<NetImpl>(at::kFloat);
    {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& each : net->parameters()) {
        each.copy_(initial[group->rank()].narrow(0, 0, each.numel()).view(each.sizes()));
      }
    }
    DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = 1e-4});
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int64_t step = 0; step < 8; ++step) {
      optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
      model.forward(share(batches[step], group)).square().mean().backward();
      optimizer.step();
    }
    for (const at::Tensor& each : net->parameters()) ended[group->rank()].push_back(each.detach());
  });
  expect_equal(ended[1], ended[0]);
  expect_equal(ended[2], ended[0]);
}

TEST(DistributedDataParallel, GradientsStayViewsAtTheSameAddress) {
  const at::Tensor batch = integers({4, 4}, 1);
  on_replicas<NetImpl>(2, {}, [&](const Group& group, NetImpl& net, auto& model) {
    model.forward(share(batch, group)).sum().backward();
    std::set<const void*> storages;
    std::vector<const void*> addresses;
    for (const at::Tensor& each : gradients_of(net)) {
      storages.insert(each.storage().unsafeGetStorageImpl());
      addresses.push_back(each.data_ptr());
    }
    EXPECT_EQ(storages.size(), 1u);
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
    optimizer.zero_grad(/*set_to_none=*/false);
    model.forward(share(batch, group)).sum().backward();
    for (std::size_t i = 0; i < addresses.size(); ++i)
      EXPECT_EQ(gradients_of(net)[i].data_ptr(), addresses[i]);
  });
}

TEST(DistributedDataParallel, ReductionsStartBeforeBackwardEnds) {
  const DistributedDataParallelOptions options{.bucket_cap_mb = 1e-9};
  on_replicas<NetImpl>(2, options, [&](const Group&, NetImpl& net, auto& model) {
    const at::Tensor x = integers({2, 4}, 1).requires_grad_();
    std::size_t started = 0;
    const at::Tensor hidden = net.first(x);
    net.first->weight.register_hook(
        [&](const at::Tensor&) { started = model.reducer().started_reductions(); });
    model.forward(x).sum().backward();
    EXPECT_GE(started, 4u);
  });
}

TEST(DistributedDataParallel, NoSyncAccumulatesAndTheNextPassAveragesTheSum) {
  const at::Tensor batch = integers({8, 4}, 1);
  const at::Tensor more = integers({8, 4}, 2);
  on_replicas<NetImpl>(2, {}, [&](const Group& group, NetImpl& net, auto& model) {
    for (int step = 0; step < 3; ++step) {
      // In the last step `.grad` is already a view, and is zeroed in place.
      if (step == 2) {
        for (const at::Tensor& each : gradients_of(net)) each.zero_();
      } else {
        net.zero_grad();
      }
      {
        const NoSyncGuard guard = model.no_sync();
        model.forward(share(batch, group)).sum().backward();
        NetImpl alone;
        fill(alone, 0);
        alone.forward(share(batch, group)).sum().backward();
        expect_equal(gradients_of(net), gradients_of(alone));
      }
      model.forward(share(more, group)).sum().backward();
      expect_equal(gradients_of(net), expected(at::cat({batch, more}), 0, 2));
    }
  });
}

TEST(DistributedDataParallel, SeveralPassesForOneForwardAddUp) {
  const at::Tensor batch = integers({8, 4}, 1);
  const DistributedDataParallelOptions options{.bucket_cap_mb = 1e-9};
  on_replicas<NetImpl>(2, options, [&](const Group& group, NetImpl& net, auto& model) {
    const at::Tensor loss = model.forward(share(batch, group)).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    expect_equal(gradients_of(net), expected(at::cat({batch, batch}), 0, 2));
  });
}

TEST(DistributedDataParallel, SeveralForwardsForOnePass) {
  const at::Tensor batch = integers({8, 4}, 1);
  const at::Tensor more = integers({8, 4}, 2);
  const DistributedDataParallelOptions options{.find_unused_parameters = true};
  on_replicas<NetImpl>(2, options, [&](const Group& group, NetImpl& net, auto& model) {
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      const at::Tensor first = model.forward(share(batch, group)).sum();
      (first + model.forward(share(more, group)).sum()).backward();
      expect_equal(gradients_of(net), expected(at::cat({batch, more}), 0, 2));
    }
  });
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() : one(register_module("one", torch::nn::Linear(3, 3))) {
    to(at::kDouble);
    same = register_module("same", one);
  }
  at::Tensor forward(const at::Tensor& x) { return same(one(x)); }
  torch::nn::Linear one, same = nullptr;
};

TEST(DistributedDataParallel, SharedParametersAreReducedOnce) {
  const Ranks ranks(2, kOptions);
  const at::Tensor batch = integers({4, 3}, 1);
  TiedImpl whole;
  fill(*whole.one, 0);
  whole.forward(batch).sum().backward();
  ranks.run([&](const Group& group) {
    auto net = std::make_shared<TiedImpl>();
    fill(*net->one, group->rank());
    DistributedDataParallel model(net, {.group = group});
    model.forward(share(batch, group)).sum().backward();
    EXPECT_EQ(model.reducer().bucket_names()[0].size(), 2u);
    EXPECT_TRUE(at::equal(net->one->weight.grad(), whole.one->weight.grad() / 2));
    EXPECT_TRUE(at::equal(net->one->bias.grad(), whole.one->bias.grad() / 2));
  });
}

TEST(DistributedDataParallel, FrozenParametersAreCopiedFromRankZeroAndHaveNoGradient) {
  const Ranks ranks(2, kOptions);
  const at::Tensor batch = integers({4, 4}, 1);
  ranks.run([&](const Group& group) {
    Net net;
    fill(*net, group->rank());
    net->first->weight.requires_grad_(false);
    DistributedDataParallel model(net, {.group = group});
    EXPECT_TRUE(at::equal(net->first->weight, integers({6, 4}, 0)));
    model.forward(share(batch, group)).sum().backward();
    EXPECT_FALSE(net->first->weight.grad().defined());
    EXPECT_TRUE(at::equal(net->third->weight.grad(), expected(batch, 0, 2)[4]));
  });
}

struct MixedImpl : torch::nn::Module {
  MixedImpl()
      : small(register_module("small", torch::nn::Linear(2, 2))),
        large(register_module("large", torch::nn::Linear(2, 2))),
        last(register_module("last", torch::nn::Linear(2, 2))) {
    large->to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return last(large(small(x).to(at::kDouble)).to(at::kFloat)); }
  torch::nn::Linear small, large, last;
};

TEST(DistributedDataParallel, DtypesHaveSeparateBuckets) {
  const at::Tensor batch = integers({4, 2}, 1, at::kFloat);
  MixedImpl whole;
  fill(whole, 0);
  whole.forward(batch).sum().backward();
  on_replicas<MixedImpl>(2, {}, [&](const Group& group, MixedImpl& net, auto& model) {
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      model.forward(share(batch, group)).sum().backward();
      const std::vector<at::Tensor> want = gradients_of(whole);
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(at::equal(gradients_of(net)[i], want[i] / 2)) << i;
    }
    EXPECT_EQ(model.reducer().bucket_names().size(), 2u);
  });
}

struct NormalizedImpl : torch::nn::Module {
  NormalizedImpl() : norm(register_module("norm", torch::nn::BatchNorm1d(4))) { to(at::kDouble); }
  at::Tensor forward(const at::Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm;
};

TEST(DistributedDataParallel, BuffersAreCopiedFromRankZeroBeforeEachForwardInTraining) {
  const Ranks ranks(2, kOptions);
  at::manual_seed(3);
  const at::Tensor batches = at::randn({3, 8, 4}, at::kDouble);
  ranks.run([&](const Group& group) {
    auto net = std::make_shared<NormalizedImpl>();
    net->norm->running_mean.fill_(group->rank() + 1);
    DistributedDataParallel model(net, {.group = group});
    EXPECT_TRUE(at::equal(net->norm->running_mean, at::ones({4}, at::kDouble)));
    NormalizedImpl first;
    first.norm->running_mean.fill_(1);
    for (int64_t step = 0; step < 3; ++step) {
      // The expected mean: rank 0's mean after the previous step, updated with this rank's batch.
      const at::Tensor mean = first.norm->running_mean * 0.9 + share(batches[step], group).mean(0) * 0.1;
      model.forward(share(batches[step], group)).sum().backward();
      EXPECT_TRUE(at::allclose(net->norm->running_mean, mean)) << step;
      EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), step + 1);
      first.forward(batches[step].chunk(2)[0]);
    }
    // In evaluation nothing is sent, so the ranks may call forward different numbers of times.
    net->eval();
    if (group->rank() == 1) model.forward(batches[0]);
  });
}

TEST(DistributedDataParallel, BucketsFollowTheOrderOfRankZeroIfRanksDiffer) {
  const Ranks ranks(2, kOptions);
  std::vector<std::vector<std::string>> names[2];
  ranks.run([&](const Group& group) {
    // The branch that runs last, and so has its gradients first, differs between the ranks.
    struct Ordered : torch::nn::Module {
      Ordered()
          : a(register_module("a", torch::nn::Linear(2, 2))),
            b(register_module("b", torch::nn::Linear(2, 2))) {
        to(at::kDouble);
      }
      at::Tensor forward(const at::Tensor& x, bool a_first) {
        if (a_first) {
          const at::Tensor y = a(x);
          return y + b(x);
        }
        const at::Tensor y = b(x);
        return y + a(x);
      }
      torch::nn::Linear a, b;
    };
    auto net = std::make_shared<Ordered>();
    fill(*net, 0);
    DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = 1e-9});
    const at::Tensor x = integers({2, 2}, group->rank());
    const at::Tensor both = integers({2, 2}, 0).sum(0) + integers({2, 2}, 1).sum(0);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      model.forward(x, (group->rank() + step) % 2 == 1).sum().backward();
      EXPECT_TRUE(at::equal(net->a->weight.grad(), both.expand({2, 2}) / 2));
      EXPECT_TRUE(at::equal(net->b->weight.grad(), both.expand({2, 2}) / 2));
    }
    names[group->rank()] = model.reducer().bucket_names();
  });
  EXPECT_EQ(names[0], names[1]);
  // In its first step rank 0 ran b first.
  ASSERT_EQ(names[0].size(), 4u);
  EXPECT_EQ(names[0][0][0].substr(0, 2), "a.");
  EXPECT_EQ(names[0][3][0].substr(0, 2), "b.");
}

}  // namespace
}  // namespace gradwire::data_parallel
