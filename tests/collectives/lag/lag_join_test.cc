// Join with a group in which only the accelerator has a backend that works, as with the backend nccl.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>

#include "gradwire/collectives/registry/backend_registry.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/idle_backend.h"
#include "gradwire/data_parallel/distributed_data_parallel.h"
#include "gradwire/data_parallel/zero/zero_redundancy_optimizer.h"
#include "gradwire/tests/collectives/lag/lag_backend.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

using testing::Group;
using testing::Ranks;

// Refuses the tensors of the host.
class NoHostBackend final : public testing::IdleBackend {
 public:
  absl::Status all_reduce(at::Tensor, const Reduction&, absl::Time) override {
    return absl::InvalidArgumentError("this backend takes no tensors of the host");
  }
};

TEST(LagJoin, MessagesAreOnTheDeviceOfTheParameters) {
  register_backend(Backend::kCpu, [](const BackendContext&) -> absl::StatusOr<std::unique_ptr<GroupBackend>> {
    return std::make_unique<NoHostBackend>();
  });
  use_lag_backend();
  lag::set_lag(lag::Profile::seeded(1));
  {
    const Ranks ranks(2, {.timeout = absl::Seconds(60)});
    ranks.run([](const Group& group) {
      const c10::Device device = lag::device(group->rank());
      torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
      {
        const at::NoGradGuard no_grad;
        net->weight.fill_(1);
      }
      net->to(device, at::kDouble);
      DistributedDataParallel model(net, {.group = group});
      ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(net->parameters(), torch::optim::SGDOptions(0.5),
                                                           group);
      {
        const Join join({&model, &optimizer}, {.divide_by_initial_world_size = false});
        // Each gradient is 1. Rank 1 runs two steps more.
        for (int step = 0; step < 1 + 2 * group->rank(); ++step) {
          optimizer.zero_grad();
          model.forward(at::ones({1, 2}, at::kDouble).to(device)).sum().backward();
          optimizer.step();
        }
      }
      EXPECT_TRUE(at::equal(net->weight.detach().cpu(), at::full({1, 2}, -0.5, at::kDouble)));
      {
        const Join join({&optimizer});
        optimizer.step();
      }
    });
  }
  lag::expect_nothing_left();
}

}  // namespace
}  // namespace gradwire::collectives
