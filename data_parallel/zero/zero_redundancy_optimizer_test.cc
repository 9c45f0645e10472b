#include "gradwire/data_parallel/zero/zero_redundancy_optimizer.h"

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <sstream>

#include "gradwire/base/testing/status_of.h"
#include "gradwire/collectives/objects.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::OptimizerParamGroup;

std::shared_ptr<NetImpl> net_of(int64_t seed = 0) {
  auto net = std::make_shared<NetImpl>();
  fill(*net, seed);
  return net;
}

// Two groups of parameters with different learning rates.
std::vector<OptimizerParamGroup> groups_of(const torch::nn::Module& net) {
  const std::vector<at::Tensor> all = net.parameters();
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>(all.begin(), all.begin() + 3));
  groups.emplace_back(std::vector<at::Tensor>(all.begin() + 3, all.end()),
                      std::make_unique<AdamOptions>(0.5));
  return groups;
}

void set_gradients(const torch::nn::Module& net, int64_t seed) {
  for (at::Tensor& each : net.parameters()) each.mutable_grad() = integers(each.sizes(), seed++).clone();
}

void expect_equal(const torch::nn::Module& got, const torch::nn::Module& want) {
  for (std::size_t i = 0; i < want.parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(got.parameters()[i], want.parameters()[i])) << i;
  }
}

template <class From, class To>
void copy_state(const From& from, To& to) {
  torch::serialize::OutputArchive out;
  from.save(out);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  to.load(in);
}

TEST(ZeroRedundancyOptimizer, StepsAsTheUnshardedOptimizer) {
  for (int size : {1, 2, 4}) {
    const Ranks ranks(size, kOptions);
    ranks.run([&](const Group& group) {
      const auto net = net_of(), plain = net_of();
      ZeroRedundancyOptimizer<Adam> optimizer(groups_of(*net), AdamOptions(0.25), group);
      Adam whole(groups_of(*plain), AdamOptions(0.25));
      torch::optim::StepLR schedule(optimizer, 2, 0.5), other(whole, 2, 0.5);
      for (int64_t step = 0; step < 6; ++step) {
        set_gradients(*net, step);
        set_gradients(*plain, step);
        optimizer.step();
        whole.step();
        schedule.step();
        other.step();
        expect_equal(*net, *plain);
      }
      // Each state is on one rank.
      at::Tensor states = at::full({}, static_cast<int64_t>(optimizer.local().state().size()));
      if (size > 1) EXPECT_LT(optimizer.local().state().size(), 6u);
      group->all_reduce(states);
      EXPECT_EQ(states.item<int64_t>(), 6);
      optimizer.zero_grad();
      for (const at::Tensor& each : net->parameters()) EXPECT_FALSE(each.grad().defined());
    });
  }
}

TEST(ZeroRedundancyOptimizer, TheClosureRunsOnEachRank) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    const auto net = net_of();
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(net->parameters(), torch::optim::SGDOptions(0.125),
                                                         group);
    const at::Tensor loss = optimizer.step([&] {
      set_gradients(*net, 1);
      return at::full({}, group->rank(), at::kDouble);
    });
    EXPECT_EQ(loss.item<double>(), group->rank());
    EXPECT_TRUE(at::equal(net->first->weight, integers({6, 4}, 0) - 0.125 * integers({6, 4}, 1)));
  });
}

TEST(ZeroRedundancyOptimizer, AConsolidatedStateIsThatOfTheUnshardedOptimizer) {
  const Ranks ranks(3, kOptions);
  ranks.run([](const Group& group) {
    const auto net = net_of(), plain = net_of(), again = net_of();
    ZeroRedundancyOptimizer<Adam> optimizer(groups_of(*net), AdamOptions(0.25), group);
    for (int64_t step = 0; step < 3; ++step) {
      set_gradients(*net, step);
      optimizer.step();
    }
    torch::serialize::OutputArchive none;
    EXPECT_EQ(thrown_by([&] { optimizer.save(none); }).code(), absl::StatusCode::kFailedPrecondition);
    optimizer.consolidate_state(1);
    if (group->rank() == 1) {
      Adam whole(groups_of(*plain), AdamOptions(0.25));
      copy_state(optimizer, whole);
      EXPECT_EQ(whole.state().size(), 6u);
      // An unsharded optimizer goes on with the state.
      {
        const at::NoGradGuard no_grad;
        for (std::size_t i = 0; i < 6; ++i) plain->parameters()[i].copy_(net->parameters()[i]);
      }
      set_gradients(*plain, 9);
      whole.step();
    } else {
      EXPECT_EQ(thrown_by([&] { optimizer.save(none); }).code(), absl::StatusCode::kFailedPrecondition);
    }
    // A sharded one too: each rank reads the whole archive.
    std::string bytes;
    if (group->rank() == 1) {
      torch::serialize::OutputArchive out;
      optimizer.save(out);
      std::ostringstream stream;
      out.save_to(stream);
      bytes = stream.str();
    }
    collectives::broadcast_object(bytes, 1, group);
    ZeroRedundancyOptimizer<Adam> later(groups_of(*again), AdamOptions(0.125), group);
    torch::serialize::InputArchive in;
    in.load_from(bytes.data(), bytes.size());
    later.load(in);
    {
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < 6; ++i) again->parameters()[i].copy_(net->parameters()[i]);
    }
    set_gradients(*net, 9);
    set_gradients(*again, 9);
    optimizer.step();
    later.step();
    expect_equal(*again, *net);
    if (group->rank() == 1) expect_equal(*plain, *net);
    // A step makes the consolidated state old.
    EXPECT_EQ(thrown_by([&] { optimizer.save(none); }).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(thrown_by([&] { optimizer.consolidate_state(3); }).code(), absl::StatusCode::kInvalidArgument);
  });
}

TEST(ZeroRedundancyOptimizer, GroupsOfParametersMayBeAdded) {
  const Ranks ranks(3, kOptions);
  ranks.run([](const Group& group) {
    const auto net = net_of(), plain = net_of();
    auto groups = groups_of(*net), others = groups_of(*plain);
    ZeroRedundancyOptimizer<Adam> optimizer(std::vector<OptimizerParamGroup>{groups[0]}, AdamOptions(0.25),
                                            group);
    Adam whole(std::vector<OptimizerParamGroup>{others[0]}, AdamOptions(0.25));
    const auto step_both = [&](int64_t seed) {
      set_gradients(*net, seed);
      set_gradients(*plain, seed);
      optimizer.step();
      whole.step();
      expect_equal(*net, *plain);
    };
    step_both(1);
    optimizer.consolidate_state(0);
    optimizer.add_param_group(groups[1]);
    whole.add_param_group(others[1]);
    // The state that was sent before does not have the new group.
    torch::serialize::OutputArchive none;
    EXPECT_EQ(thrown_by([&] { optimizer.save(none); }).code(), absl::StatusCode::kFailedPrecondition);
    step_both(2);
    step_both(3);
    EXPECT_EQ(optimizer.owners().size(), 2u);
    at::Tensor states = at::full({}, static_cast<int64_t>(optimizer.local().state().size()));
    group->all_reduce(states);
    EXPECT_EQ(states.item<int64_t>(), 6);
    optimizer.consolidate_state(0);
    if (group->rank() == 0) {
      Adam later(groups_of(*plain), AdamOptions(0.25));
      copy_state(optimizer, later);
      EXPECT_EQ(later.state().size(), 6u);
    }
    // All ranks refuse it before anything is sent.
    optimizer.param_groups()[0].params().pop_back();
    EXPECT_EQ(thrown_by([&] { optimizer.step(); }).code(), absl::StatusCode::kFailedPrecondition);
  });
}

TEST(ZeroRedundancyOptimizer, ARankWithoutDataStepsItsShare) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    const auto net = net_of(), whole = net_of();
    DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = 1e-4});
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(net->parameters(),
                                                         torch::optim::SGDOptions(0.25).momentum(0.5), group);
    torch::optim::SGD plain(whole->parameters(), torch::optim::SGDOptions(0.25).momentum(0.5));
    {
      const Join join({&model, &optimizer}, {.divide_by_initial_world_size = false});
      for (int64_t step = 0; step < 2 + 3 * group->rank(); ++step) {
        optimizer.zero_grad();
        model.forward(integers({2, 4}, step + 7 * group->rank())).mean().backward();
        optimizer.step();
      }
    }
    for (int64_t step = 0; step < 5; ++step) {
      plain.zero_grad();
      at::Tensor loss = whole->forward(integers({2, 4}, step + 7)).mean();
      if (step < 2) loss = (loss + whole->forward(integers({2, 4}, step)).mean()) / 2;
      loss.backward();
      plain.step();
    }
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(at::allclose(net->parameters()[i], whole->parameters()[i])) << i;
    }
  });
}

TEST(ZeroRedundancyOptimizer, NoParametersAreRefused) {
  const Ranks ranks(1, kOptions);
  ranks.run([](const Group& group) {
    EXPECT_EQ(thrown_by([&] {
                ZeroRedundancyOptimizer<Adam> optimizer(std::vector<at::Tensor>{}, AdamOptions(), group);
              }).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(thrown_by([&] {
                ZeroRedundancyOptimizer<Adam> optimizer(std::vector<at::Tensor>{at::ones({1})},
                                                        AdamOptions());
              }).code(),
              absl::StatusCode::kFailedPrecondition);
  });
}

}  // namespace
}  // namespace gradwire::data_parallel
