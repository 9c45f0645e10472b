// DistributedDataParallel with parameters on an accelerator. Rank r's replica is on lag:r.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gradwire/collectives/streams/stream_point.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/data_parallel/distributed_data_parallel.h"
#include "gradwire/device/streams.h"
#include "gradwire/tests/collectives/lag/lag_backend.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_expect.h"
#include "gtest/gtest.h"

namespace gradwire::collectives {
namespace {

using testing::Group;
using testing::Ranks;

constexpr int kReplicas = 2;
// Smaller than each parameter, so every parameter has a bucket of its own.
constexpr double kTinyMiB = 1e-6;

// Small integers, whose sums are exact in any order.
at::Tensor integers(at::IntArrayRef sizes, int64_t seed) {
  const int64_t n = c10::multiply_integers(sizes);
  return at::arange(n, at::kLong).mul(7).add(seed * 3).remainder(5).sub(2).to(at::kDouble).reshape(sizes);
}

// Two linear layers of doubles.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(c10::Device device = at::kCPU)
      : first_layer(register_module("first", torch::nn::Linear(4, 6))),
        second_layer(register_module("second", torch::nn::Linear(6, 5))) {
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    int64_t seed = 0;
    for (const at::Tensor& each : parameters()) each.copy_(integers(each.sizes(), seed++));
    to(device);
  }
  at::Tensor first(const at::Tensor& x) { return first_layer(x).relu(); }
  at::Tensor second(const at::Tensor& x) { return second_layer(x); }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }

  torch::nn::Linear first_layer, second_layer;
};

// As NetImpl, but each layer computes in a stream of its own, and its gradients are accumulated there. So the
// gradients of one bucket come from two streams.
struct TwoStreamsImpl : NetImpl {
  explicit TwoStreamsImpl(c10::Device device)
      : NetImpl(device), streams(lag::new_stream(device.index()), lag::new_stream(device.index())) {
    // A node accumulates in the stream in which it was made.
    const auto accumulate_in = [this](c10::Stream stream, const at::Tensor& parameter) {
      const c10::StreamGuard guard(stream);
      accumulators.push_back(torch::autograd::impl::grad_accumulator(parameter));
    };
    for (const at::Tensor& each : first_layer->parameters()) accumulate_in(streams.first, each);
    for (const at::Tensor& each : second_layer->parameters()) accumulate_in(streams.second, each);
  }
  at::Tensor forward(const at::Tensor& x) {
    const StreamPoint called = StreamPoint::of_current(x.device());
    at::Tensor middle;
    StreamPoint first_end, second_end;
    {
      const c10::StreamGuard guard(streams.first);
      called.block_current();
      device::record_use(x, streams.first);
      middle = first(x);
      first_end = StreamPoint::of_current(x.device());
    }
    at::Tensor y;
    {
      const c10::StreamGuard guard(streams.second);
      called.block_current();
      first_end.block_current();
      device::record_use(middle, streams.second);
      y = second(middle);
      second_end = StreamPoint::of_current(x.device());
    }
    second_end.block_current();
    device::record_use(y, device::current_stream(x.device()));
    return y;
  }

  const std::pair<c10::Stream, c10::Stream> streams;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
};

std::vector<at::Tensor> parameters_on_host(const torch::nn::Module& module) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& each : module.parameters()) list.push_back(each.detach().cpu());
  return list;
}

// The parameters after `steps` steps of one replica on the CPU, which sees the whole batch.
std::vector<at::Tensor> expected(const at::Tensor& batch, int steps) {
  NetImpl net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.25));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    net.forward(batch).sum().div(kReplicas).backward();
    optimizer.step();
  }
  return parameters_on_host(net);
}

template <class Net>
void train(const std::string& backend, const at::Tensor& batch, int steps, bool set_to_none, double cap) {
  const Ranks ranks(kReplicas, {.backend = backend, .timeout = absl::Seconds(60)});
  const std::vector<at::Tensor> wanted = expected(batch, steps);
  ranks.run([&](const Group& group) {
    const c10::Device device = lag::device(group->rank());
    auto net = std::make_shared<Net>(device);
    DistributedDataParallel<Net> model(
        net, {.group = group, .device_ids = {group->rank()}, .output_device = device, .bucket_cap_mb = cap});
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.25));
    // On the CPU: forward moves it.
    const at::Tensor share = batch.chunk(kReplicas)[group->rank()];
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad(set_to_none);
      model.forward(share).sum().backward();
      optimizer.step();
    }
    const std::vector<at::Tensor> got = parameters_on_host(*net);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], wanted[i])) << i << "\n" << got[i] << "\n" << wanted[i];
    }
  });
}

class LagDdp : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { use_lag_backend(); }
  void TearDown() override { lag::expect_nothing_left(); }
};

TEST_F(LagDdp, StepsEqualThoseOfTheCpu) {
  for (const uint64_t seed : {1, 2, 3}) {
    lag::set_lag(lag::Profile::seeded(seed));
    for (const double cap : {25.0, kTinyMiB}) {
      train<NetImpl>("", integers({12, 4}, 1), 3, /*set_to_none=*/seed % 2 == 0, cap);
    }
  }
}

TEST_F(LagDdp, CpuBackendTakesGradientsThroughTheHost) {
  for (const double cap : {25.0, kTinyMiB}) train<NetImpl>("cpu", integers({12, 4}, 2), 3, true, cap);
}

TEST_F(LagDdp, ReductionWaitsForAllStreamsOfItsBucket) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    lag::set_lag({.seed = seed, .usual_share = 0.9, .usual = absl::Milliseconds(2)});
    train<TwoStreamsImpl>("", integers({12, 4}, 3), 3, /*set_to_none=*/seed % 2 == 0, 25.0);
  }
}

// The second layer's stream stops before the gradient is copied into the bucket, which also has the first
// layer's gradients. A reduction that did not wait for that stream would run now, without the gradient, and
// the copy would later overwrite the average.
TEST_F(LagDdp, ReductionWaitsForAStreamThatIsLate) {
  const Ranks ranks(kReplicas, {.timeout = absl::Seconds(60)});
  const at::Tensor batch = integers({12, 4}, 1);
  NetImpl whole;
  whole.forward(batch).sum().div(kReplicas).backward();
  ranks.run([&](const Group& group) {
    const c10::Device device = lag::device(group->rank());
    auto net = std::make_shared<TwoStreamsImpl>(device);
    DistributedDataParallel<TwoStreamsImpl> model(net, {.group = group});
    const at::Tensor share = batch.chunk(kReplicas)[group->rank()].to(device);
    for (int pass = 0; pass < 2; ++pass) model.forward(share).sum().backward();
    net->zero_grad();
    std::optional<lag::StreamHold> hold;
    net->second_layer->weight.register_hook([&](const at::Tensor&) { hold.emplace(net->streams.second); });
    model.forward(share).sum().backward();
    ASSERT_TRUE(hold.has_value());
    // Time for a wrong reduction to run. A right one cannot run before the release, however long this is.
    absl::SleepFor(absl::Milliseconds(100));
    hold.reset();
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(net->parameters()[i].grad().cpu(), whole.parameters()[i].grad())) << i;
    }
  });
}

// The gradient of the first layer is computed last. When the pass comes to it, the reductions of the second
// layer have started, and no host thread has waited for a device.
TEST_F(LagDdp, ReductionsOverlapBackwardAndBlockNoHostThread) {
  const Ranks ranks(kReplicas, {.timeout = absl::Seconds(60)});
  std::atomic<int> overlapped = 0;
  std::vector<std::shared_ptr<NetImpl>> nets(kReplicas);
  std::vector<std::unique_ptr<DistributedDataParallel<NetImpl>>> models(kReplicas);
  std::vector<at::Tensor> shares(kReplicas);
  ranks.run([&](const Group& group) {
    const int rank = group->rank();
    nets[rank] = std::make_shared<NetImpl>(lag::device(rank));
    models[rank] = std::make_unique<DistributedDataParallel<NetImpl>>(
        nets[rank], DistributedDataParallelOptions{.group = group, .bucket_cap_mb = kTinyMiB});
    shares[rank] = integers({12, 4}, 1).chunk(kReplicas)[rank].to(lag::device(rank));
    // The first pass arranges the buckets, which needs the host.
    for (int pass = 0; pass < 2; ++pass) models[rank]->forward(shares[rank]).sum().backward();
    nets[rank]->first_layer->weight.register_hook([&, rank](const at::Tensor&) {
      if (models[rank]->reducer().started_reductions() >= 2) ++overlapped;
    });
    nets[rank]->zero_grad();
  });
  lag::synchronize_all();
  const int64_t waits = lag::counts().host_waits;
  {
    const lag::StreamHold hold(lag::default_stream(0));
    ranks.run(
        [&](const Group& group) { models[group->rank()]->forward(shares[group->rank()]).sum().backward(); });
    EXPECT_EQ(lag::counts().host_waits, waits);
  }
  EXPECT_EQ(overlapped, kReplicas);
  NetImpl whole;
  whole.forward(integers({12, 4}, 1)).sum().div(kReplicas).backward();
  for (const auto& net : nets) {
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(net->parameters()[i].grad().cpu(), whole.parameters()[i].grad())) << i;
    }
  }
}

// A local step waits for its operation. During the pass this would make the stream of the pass wait, and the
// rest of the pass would not overlap with the reductions.
TEST_F(LagDdp, LocalStepsRunAfterTheLastGradient) {
  const Ranks ranks(kReplicas, {.timeout = absl::Seconds(60)});
  ranks.run([&](const Group& group) {
    const c10::Device device = lag::device(group->rank());
    auto net = std::make_shared<NetImpl>(device);
    DistributedDataParallel<NetImpl> model(net, {.group = group, .bucket_cap_mb = kTinyMiB});
    int ran = 0, buckets = 0;
    model.register_comm_hook(make_comm_hook([&](GradBucket& bucket) {
      EXPECT_EQ(ran, 0) << buckets;
      ++buckets;
      const auto work = group->all_reduce_async(bucket.buffer(), ReduceOp::kAvg);
      // The operation is enqueued, so the step could run now.
      work->future().wait();
      return HookStep::locally_after({work}, [&] {
        ++ran;
        return HookStep(bucket.buffer());
      });
    }));
    const at::Tensor batch = integers({12, 4}, 1);
    NetImpl whole;
    whole.forward(batch).sum().div(kReplicas).backward();
    model.forward(batch.chunk(kReplicas)[group->rank()].to(device)).sum().backward();
    EXPECT_EQ(buckets, 4);
    EXPECT_EQ(ran, 4);
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(net->parameters()[i].grad().cpu(), whole.parameters()[i].grad())) << i;
    }
  });
}

}  // namespace
}  // namespace gradwire::collectives
