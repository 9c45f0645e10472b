// Trains the networks of oracle/oracle.py and compares the losses with those that PyTorch computes.

#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "gradwire/data_parallel/averaging/post_local_sgd_optimizer.h"
#include "gradwire/data_parallel/hooks/optimizer_in_backward.h"
#include "gradwire/data_parallel/hooks/post_local_sgd_hook.h"
#include "gradwire/data_parallel/hooks/power_sgd_hook.h"
#include "gradwire/data_parallel/hooks/stock_hooks.h"
#include "gradwire/data_parallel/sync_batch_norm/sync_batch_norm.h"
#include "gradwire/data_parallel/test_modules.h"
#include "gradwire/data_parallel/testing/oracle_case.h"
#include "gradwire/data_parallel/zero/zero_redundancy_optimizer.h"
#include "gradwire/data_parallel/zero/zero_step_hooks.h"

namespace gradwire::data_parallel {
namespace {

using oracle::batch;
using oracle::kSteps;
using oracle::loss_of;
using oracle::sgd;
using Losses = std::vector<double>;
using Run = std::function<Losses(const Group& group)>;

constexpr double kTolerance = 1e-6;

std::map<std::pair<std::string, int>, Losses> read_recorded() {
  std::map<std::pair<std::string, int>, Losses> recorded;
  std::ifstream file("data_parallel/testing/oracle/losses.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int rank = 0;
    words >> name >> rank;
    for (double loss = 0; words >> loss;) recorded[{name, rank}].push_back(loss);
  }
  return recorded;
}

// Runs the case on `size` ranks and compares each loss with the recorded one.
void expect_recorded(const std::string& name, int size, const Run& run) {
  static const auto recorded = read_recorded();
  const Ranks ranks(size, kOptions);
  std::vector<Losses> losses(static_cast<std::size_t>(size));
  ranks.run([&](const Group& group) { losses[static_cast<std::size_t>(group->rank())] = run(group); });
  for (int rank = 0; rank < size; ++rank) {
    const auto want = recorded.find({name, rank});
    ASSERT_TRUE(want != recorded.end()) << name << " of rank " << rank << " is not recorded";
    const Losses& got = losses[static_cast<std::size_t>(rank)];
    ASSERT_EQ(got.size(), want->second.size());
    for (std::size_t step = 0; step < got.size(); ++step) {
      ASSERT_NEAR(got[step], want->second[step], kTolerance) << "rank " << rank << ", step " << step;
    }
  }
}

template <class Model, class Optimizer, class... Arguments>
double step_of(Model& model, Optimizer& optimizer, const oracle::Batch& data, const Arguments&... arguments) {
  optimizer.zero_grad();
  const at::Tensor loss = loss_of(model.forward(data.x, arguments...), data.y);
  loss.backward();
  optimizer.step();
  return loss.template item<double>();
}

template <class Model, class Optimizer>
Losses train(const Group& group, Model& model, Optimizer& optimizer, at::ScalarType dtype = at::kDouble,
             int64_t steps = kSteps) {
  Losses losses;
  for (int64_t step = 0; step < steps; ++step) {
    losses.push_back(step_of(model, optimizer, batch(group->rank(), step, dtype)));
  }
  return losses;
}

using MakeHook = std::function<std::shared_ptr<CommHook>(const Group& group)>;

Run with_hook(const MakeHook& make, at::ScalarType dtype = at::kDouble) {
  return [make, dtype](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>(oracle::NetOptions{.dtype = dtype});
    DistributedDataParallel model(net, {.group = group});
    if (make != nullptr) model.register_comm_hook(make(group));
    return train(group, model, *sgd(*net), dtype);
  };
}

TEST(Oracle, WithoutAHook) { expect_recorded("plain", 2, with_hook(nullptr)); }
TEST(Oracle, AllReduceHook) { expect_recorded("allreduce_hook", 2, with_hook(allreduce_hook)); }
TEST(Oracle, NoopHook) {
  expect_recorded("noop", 2, with_hook([](const Group&) { return noop_hook(); }));
}
TEST(Oracle, Float16Hook) { expect_recorded("fp16", 2, with_hook(fp16_compress_hook, at::kFloat)); }
TEST(Oracle, BFloat16Hook) { expect_recorded("bf16", 2, with_hook(bf16_compress_hook, at::kFloat)); }
TEST(Oracle, QuantizedTensors) {
  expect_recorded("quantized_tensor", 2, with_hook(quantization_pertensor_hook, at::kFloat));
}
TEST(Oracle, QuantizedChannels) {
  expect_recorded(
      "quantized_channel", 2,
      with_hook([](const Group& group) { return quantization_perchannel_hook(group, 64); }, at::kFloat));
}
TEST(Oracle, PowerSgd) {
  expect_recorded("power_sgd", 2, with_hook([](const Group& group) {
                    return std::make_shared<PowerSgdHook>(PowerSgdOptions{.group = group,
                                                                          .matrix_approximation_rank = 1,
                                                                          .start_power_sgd_iter = 2,
                                                                          .min_compression_rate = 0.5});
                  }));
}
TEST(Oracle, PowerSgdWithoutWarmStart) {
  expect_recorded(
      "power_sgd_qr", 2, with_hook([](const Group& group) {
        return std::make_shared<PowerSgdHook>(PowerSgdOptions{
            .group = group, .matrix_approximation_rank = 3, .start_power_sgd_iter = 5, .warm_start = false});
      }));
}
TEST(Oracle, PowerSgdInFloat16) {
  expect_recorded("power_sgd_fp16", 2,
                  with_hook(
                      [](const Group& group) {
                        return fp16_compress_wrapper(
                            std::make_shared<PowerSgdHook>(PowerSgdOptions{.group = group,
                                                                           .matrix_approximation_rank = 2,
                                                                           .start_power_sgd_iter = 2,
                                                                           .min_compression_rate = 0.5}));
                      },
                      at::kFloat));
}

TEST(Oracle, PostLocalSgd) {
  expect_recorded("post_local_sgd", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>();
    DistributedDataParallel model(net, {.group = group});
    model.register_comm_hook(std::make_shared<PostLocalSgdHook>(
        PostLocalSgdOptions{.group = group, .subgroup = nullptr, .start_local_sgd_iter = 10}));
    PostLocalSgdOptimizer optimizer(sgd(*net), std::make_unique<PeriodicModelAverager>(group, 4, 10));
    return train(group, model, optimizer);
  });
}

TEST(Oracle, HierarchicalAverages) {
  expect_recorded("hierarchical", 4, [](const Group& group) {
    oracle::NetImpl net;
    PostLocalSgdOptimizer optimizer(sgd(net), std::make_unique<HierarchicalModelAverager>(
                                                  group, std::map<int64_t, int>{{2, 2}, {4, 4}}, 3));
    return train(group, net, optimizer);
  });
}

TEST(Oracle, OptimizerInBackward) {
  expect_recorded("optimizer_in_backward", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>();
    DistributedDataParallel model(net, {.group = group});
    model.register_comm_hook(
        std::make_shared<OptimizerInBackward>(allreduce_hook(group), [](const at::Tensor& parameter) {
          return std::make_unique<torch::optim::SGD>(std::vector{parameter},
                                                     torch::optim::SGDOptions(0.05).momentum(0.9));
        }));
    Losses losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto [x, y] = batch(group->rank(), step);
      const at::Tensor loss = loss_of(model.forward(x), y);
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    return losses;
  });
}

Run with_join(bool divide_by_initial_world_size) {
  return [divide_by_initial_world_size](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>(oracle::NetOptions{.norm = true});
    DistributedDataParallel model(net, {.group = group});
    Losses losses;
    {
      const auto optimizer = sgd(*net);
      const Join join = model.join({.divide_by_initial_world_size = divide_by_initial_world_size});
      losses = train(group, model, *optimizer, at::kDouble, 20 + 10 * group->rank());
    }
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
    const Losses more = train(group, model, optimizer, at::kDouble, 20);
    losses.insert(losses.end(), more.begin(), more.end());
    return losses;
  };
}

TEST(Oracle, JoinDividesByAllRanks) { expect_recorded("join", 2, with_join(true)); }
TEST(Oracle, JoinDividesByTheRanksWithData) { expect_recorded("join_active", 2, with_join(false)); }

TEST(Oracle, JoinOfAReplicaAndAnOptimizer) {
  expect_recorded("join_zero", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>();
    DistributedDataParallel model(net, {.group = group});
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(net->parameters(),
                                                         torch::optim::SGDOptions(0.05).momentum(0.9), group);
    const Join join({&model, &optimizer});
    return train(group, model, optimizer);
  });
}

TEST(Oracle, StaticGraphWithCheckpoints) {
  expect_recorded("static_graph", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::LoopedImpl>();
    DistributedDataParallel model(net, {.group = group, .bucket_cap_mb = 1e-9, .static_graph = true});
    return train(group, model, *sgd(*net));
  });
}

TEST(Oracle, DelayedParameters) {
  expect_recorded("delayed", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>(oracle::NetOptions{.dtype = at::kFloat});
    DistributedDataParallel model(net,
                                  {.group = group, .delayed_parameters = {"second.weight", "second.bias"}});
    return train(group, model, *sgd(*net), at::kFloat);
  });
}

TEST(Oracle, IgnoredParameters) {
  expect_recorded("ignored", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>();
    DistributedDataParallel model(net, {.group = group, .ignored = {"second.weight", "second.bias"}});
    return train(group, model, *sgd(*net));
  });
}

TEST(Oracle, SparseGradients) {
  expect_recorded("sparse", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::WordsImpl>();
    DistributedDataParallel model(net, {.group = group});
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5));
    Losses losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor words =
          at::arange(oracle::kRows, at::kLong).mul(5).add(step * (group->rank() + 2)).remainder(12);
      losses.push_back(step_of(model, optimizer, {words, batch(group->rank(), step).y}));
    }
    return losses;
  });
}

TEST(Oracle, UnusedParameters) {
  expect_recorded("unused", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>(oracle::NetOptions{.branch = true});
    DistributedDataParallel model(net, {.group = group, .find_unused_parameters = true});
    const auto optimizer = sgd(*net);
    Losses losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      losses.push_back(
          step_of(model, *optimizer, batch(group->rank(), step), step % 2 == 1 && group->rank() == 1));
    }
    return losses;
  });
}

TEST(Oracle, BroadcastBuffers) {
  expect_recorded("buffers", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>(oracle::NetOptions{.norm = true});
    DistributedDataParallel model(net, {.group = group});
    const auto optimizer = sgd(*net);
    Losses losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      losses.push_back(step_of(model, *optimizer, batch(group->rank(), step)));
      if (step % 5 != 4) continue;
      net->eval();
      const at::NoGradGuard no_grad;
      losses.back() += model.forward(batch(0, step).x).sum().item<double>();
      net->train();
    }
    return losses;
  });
}

TEST(Oracle, AccumulatedGradients) {
  expect_recorded("accumulated", 3, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>();
    DistributedDataParallel model(net, {.group = group});
    const auto optimizer = sgd(*net);
    Losses losses;
    const auto pass = [&](int64_t step) {
      const auto [x, y] = batch(group->rank(), step);
      const at::Tensor loss = loss_of(model.forward(x), y);
      loss.backward();
      losses.push_back(loss.item<double>());
    };
    for (int64_t step = 0; step < kSteps; step += 2) {
      optimizer->zero_grad();
      {
        const auto guard = model.no_sync();
        pass(step);
      }
      pass(step + 1);
      optimizer->step();
    }
    return losses;
  });
}

TEST(Oracle, ZeroRedundancyOptimizer) {
  expect_recorded("zero", 3, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>();
    const std::vector<at::Tensor> all = net->parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>(all.begin(), all.begin() + 4));
    groups.emplace_back(std::vector<at::Tensor>(all.begin() + 4, all.end()),
                        std::make_unique<torch::optim::AdamOptions>(0.001));
    ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(groups, torch::optim::AdamOptions(0.01), group);
    DistributedDataParallel model(net, {.group = group});
    return train(group, model, optimizer);
  });
}

using MakeZeroHook = std::shared_ptr<CommHook> (*)(std::shared_ptr<CommHook>, ShardedOptimizer&);

// PyTorch's optimizer does not step in the first two passes, in which its replica arranges the buckets.
Run with_zero_step(MakeZeroHook make) {
  return [make](const Group& group) {
    constexpr int64_t kPassesWithoutStep = 2;
    auto net = std::make_shared<oracle::NetImpl>();
    DistributedDataParallel model(net, {.group = group});
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(net->parameters(),
                                                         torch::optim::SGDOptions(0.05).momentum(0.9), group);
    model.register_comm_hook(make(allreduce_hook(group), optimizer));
    Losses losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto [x, y] = batch(group->rank(), step);
      optimizer.zero_grad();
      const at::AutoGradMode grad(step >= kPassesWithoutStep);
      const at::Tensor loss = loss_of(model.forward(x), y);
      if (step >= kPassesWithoutStep) loss.backward();
      losses.push_back(loss.item<double>());
    }
    return losses;
  };
}

TEST(Oracle, ZeroStepInThePass) { expect_recorded("zero_step", 2, with_zero_step(hook_with_zero_step)); }
TEST(Oracle, ZeroStepInterleavedWithThePass) {
  expect_recorded("zero_step_interleaved", 2, with_zero_step(hook_with_zero_step_interleaved));
}

TEST(Oracle, MixedPrecision) {
  expect_recorded("mixed_precision", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>(oracle::NetOptions{.dtype = at::kFloat});
    DistributedDataParallel model(
        net, {.group = group,
              .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
    const auto optimizer = sgd(*net);
    Losses losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto [x, y] = batch(group->rank(), step, at::kFloat);
      optimizer->zero_grad();
      const at::Tensor output = model.forward(x);
      EXPECT_EQ(output.scalar_type(), at::kBFloat16);
      const at::Tensor loss = loss_of(output.to(at::kFloat), y);
      loss.backward();
      EXPECT_EQ(net->first->weight.scalar_type(), at::kFloat);
      EXPECT_EQ(net->first->weight.grad().scalar_type(), at::kFloat);
      optimizer->step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  });
}

TEST(Oracle, SyncBatchNorm) {
  expect_recorded("sync_batch_norm", 2, [](const Group& group) {
    auto net = std::make_shared<oracle::NetImpl>(oracle::NetOptions{.norm = true});
    EXPECT_EQ(convert_sync_batchnorm(*net, group), std::vector<std::string>{"norm"});
    DistributedDataParallel model(net, {.group = group});
    const auto optimizer = sgd(*net);
    Losses losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      losses.push_back(step_of(model, *optimizer,
                               batch(group->rank(), step, at::kDouble, oracle::kRows + 3 * group->rank())));
    }
    return losses;
  });
}

}  // namespace
}  // namespace gradwire::data_parallel
