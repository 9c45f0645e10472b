#include "gradwire/data_parallel/join/join.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/data_parallel/hooks/power_sgd_hook.h"
#include "gradwire/data_parallel/hooks/stock_hooks.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

// Runs `steps` steps of rank's data.
template <class Model>
void run_steps(const Group& group, NetImpl& net, Model& model, int64_t steps) {
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.25));
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    model.forward(integers({2, 4}, step + 5 * group->rank())).mean().backward();
    optimizer.step();
  }
}

// The parameters after `steps` steps of each rank, computed by one replica.
std::vector<at::Tensor> expected(const std::vector<int64_t>& steps, bool divide_by_all) {
  NetImpl net;
  fill(net, 0);
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.25));
  for (int64_t step = 0;; ++step) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    int active = 0;
    for (std::size_t rank = 0; rank < steps.size(); ++rank) {
      if (step >= steps[rank]) continue;
      sum = sum + net.forward(integers({2, 4}, step + 5 * static_cast<int64_t>(rank))).mean();
      ++active;
    }
    if (active == 0) return net.parameters();
    optimizer.zero_grad();
    (sum / (divide_by_all ? static_cast<int>(steps.size()) : active)).backward();
    optimizer.step();
  }
}

void expect_close(const torch::nn::Module& net, const std::vector<at::Tensor>& want) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(at::allclose(net.parameters()[i], want[i])) << i << net.parameters()[i] << want[i];
  }
}

TEST(Join, RanksMayHaveDifferentNumbersOfSteps) {
  const std::vector<std::vector<int64_t>> cases = {{3, 5, 2}, {0, 2, 4}, {4, 0, 0}, {2, 2, 2}, {0, 0, 0}};
  for (const std::vector<int64_t>& steps : cases) {
    for (const bool divide_by_all : {true, false}) {
      for (const double cap : {25.0, 1e-9}) {
        SCOPED_TRACE(::testing::PrintToString(steps) + (divide_by_all ? " all" : " active"));
        const DistributedDataParallelOptions options{.bucket_cap_mb = cap};
        on_replicas<NetImpl>(3, options, [&](const Group& group, NetImpl& net, auto& model) {
          {
            const Join join = model.join({.divide_by_initial_world_size = divide_by_all});
            run_steps(group, net, model, steps[static_cast<std::size_t>(group->rank())]);
          }
          expect_close(net, expected(steps, divide_by_all));
          // The replica works as before.
          net.zero_grad();
          model.forward(integers({2, 4}, group->rank())).mean().backward();
        });
      }
    }
  }
}

TEST(Join, WithUnusedParametersStaticGraphsAndHooks) {
  const std::vector<int64_t> steps = {1, 4, 0};
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(kind);
    const DistributedDataParallelOptions options{
        .bucket_cap_mb = 1e-9, .find_unused_parameters = kind == 0, .static_graph = kind == 1};
    on_replicas<NetImpl>(3, options, [&](const Group& group, NetImpl& net, auto& model) {
      if (kind == 2) model.register_comm_hook(allreduce_hook(group));
      if (kind == 3) {
        model.register_comm_hook(
            std::make_shared<PowerSgdHook>(PowerSgdOptions{.group = group,
                                                           .matrix_approximation_rank = 8,
                                                           .start_power_sgd_iter = 2,
                                                           .min_compression_rate = 0.01}));
      }
      {
        const Join join = model.join();
        run_steps(group, net, model, steps[static_cast<std::size_t>(group->rank())]);
      }
      expect_close(net, expected(steps, true));
    });
  }
}

TEST(Join, StepsWithoutReductionNeedNoHelp) {
  on_replicas<NetImpl>(2, {}, [](const Group& group, NetImpl& net, auto& model) {
    const Join join = model.join();
    for (int64_t step = 0; step < 2 + 2 * group->rank(); ++step) {
      {
        const auto guard = model.no_sync();
        model.forward(integers({2, 4}, step)).mean().backward();
      }
      model.forward(integers({2, 4}, step)).mean().backward();
      net.zero_grad();
    }
  });
}

TEST(Join, BuffersComeFromARankThatHasData) {
  struct NormalizedImpl : torch::nn::Module {
    NormalizedImpl() : norm(register_module("norm", torch::nn::BatchNorm1d(4))) { to(at::kDouble); }
    at::Tensor forward(const at::Tensor& x) { return norm(x); }
    torch::nn::BatchNorm1d norm;
  };
  on_replicas<NormalizedImpl>(3, {}, [](const Group& group, NormalizedImpl& net, auto& model) {
    {
      const Join join = model.join();
      for (int64_t step = 0; step < (group->rank() == 1 ? 4 : 1); ++step) {
        model.forward(integers({3, 4}, 3 * step)).sum().backward();
      }
    }
    EXPECT_EQ(net.norm->num_batches_tracked.template item<int64_t>(), 4);
    at::Tensor mean = net.norm->running_mean.clone();
    group->broadcast(mean, 1);
    EXPECT_TRUE(at::equal(mean, net.norm->running_mean));
  });
}

TEST(Join, EarlyTerminationStopsAllRanks) {
  on_replicas<NetImpl>(3, {}, [](const Group& group, NetImpl& net, auto& model) {
    const absl::Status status = thrown_by([&] {
      Join join = model.join({.throw_on_early_termination = true});
      run_steps(group, net, model, group->rank() == 1 ? 2 : 5);
      join.finish();
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "1 of 3 ranks have no more data")) << status;
    // The group is in order.
    group->barrier();
  });
}

TEST(Join, EqualNumbersOfStepsAreNoEarlyTermination) {
  on_replicas<NetImpl>(2, {}, [](const Group& group, NetImpl& net, auto& model) {
    Join join = model.join({.throw_on_early_termination = true});
    run_steps(group, net, model, 2);
    join.finish();
    join.finish();
  });
}

TEST(Join, DisabledItDoesNothing) {
  on_replicas<NetImpl>(2, {}, [](const Group& group, NetImpl& net, auto& model) {
    if (group->rank() == 1) const Join join = model.join({.enable = false});
    run_steps(group, net, model, 1);
  });
}

// Rank 1 stays in its scope until rank 0 has left its own, so rank 0 must not wait for it.
TEST(Join, AnExceptionLeavesTheScopeWithoutWaiting) {
  absl::Notification left;
  on_replicas<NetImpl>(2, {}, [&](const Group& group, NetImpl& net, auto& model) {
    if (group->rank() == 0) {
      const absl::Status status = thrown_by([&] {
        const Join join = model.join();
        run_steps(group, net, model, 1);
        throw std::runtime_error("bad batch");
      });
      EXPECT_TRUE(absl::StrContains(status.message(), "bad batch")) << status;
      left.Notify();
      group->destroy();
      return;
    }
    const absl::Status status = thrown_by([&] {
      Join join = model.join();
      run_steps(group, net, model, 1);
      EXPECT_TRUE(left.WaitForNotificationWithTimeout(absl::Seconds(30)));
      join.finish();
    });
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  });
}

TEST(Join, NoObjectsAndDifferentGroupsAreRefused) {
  EXPECT_EQ(thrown_by([] { Join join({}); }).code(), absl::StatusCode::kInvalidArgument);
  const Ranks ranks(1, kOptions), others(1, kOptions);
  NetImpl net;
  DistributedDataParallel one(std::make_shared<NetImpl>(), {.group = ranks[0]});
  DistributedDataParallel two(std::make_shared<NetImpl>(), {.group = others[0]});
  EXPECT_EQ(thrown_by([&] { Join join({&one, &two}); }).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::data_parallel
