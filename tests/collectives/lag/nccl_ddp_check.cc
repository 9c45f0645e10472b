// Checks DistributedDataParallel over the nccl backend on a machine with G GPUs, on 1 to G ranks, against one
// replica on the CPU. Prints "N passed, N failed", and exits with 1 if a check failed. Without a GPU it
// checks nothing.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/collectives/nccl/nccl_check_operations.h"
#include "gradwire/data_parallel/distributed_data_parallel.h"

namespace gradwire::collectives::nccl_check {
namespace {

constexpr int64_t kRows = 8;
constexpr double kTinyMiB = 1e-6;

// Small integers, whose sums are exact in any order.
at::Tensor integers(at::IntArrayRef sizes, int64_t seed) {
  const int64_t n = c10::multiply_integers(sizes);
  return at::arange(n, at::kLong).mul(7).add(seed * 3).remainder(5).sub(2).to(at::kDouble).reshape(sizes);
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(4, 6))),
        second(register_module("second", torch::nn::Linear(6, 5))) {
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    int64_t seed = 0;
    for (const at::Tensor& each : parameters()) each.copy_(integers(each.sizes(), seed++));
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x).relu()); }

  torch::nn::Linear first, second;
};

void check_steps(int size, double cap) {
  const at::Tensor batch = integers({kRows * size, 4}, 1);
  NetImpl whole;
  torch::optim::SGD on_host(whole.parameters(), torch::optim::SGDOptions(0.25));
  for (int step = 0; step < 3; ++step) {
    on_host.zero_grad();
    whole.forward(batch).sum().div(size).backward();
    on_host.step();
  }
  std::vector<int> devices;
  for (int i = 0; i < size; ++i) devices.push_back(i);
  run_world(devices, absl::Minutes(2), [&](const Group& group, int rank) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, device.index()));
    auto net = std::make_shared<NetImpl>();
    net->to(device);
    DistributedDataParallel<NetImpl> model(net, {.group = group, .device_ids = {rank}, .bucket_cap_mb = cap});
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.25));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model.forward(batch.chunk(size)[rank]).sum().backward();
      optimizer.step();
    }
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      same(net->parameters()[i].detach(), whole.parameters()[i].detach(),
           absl::StrCat("parameter ", i, " on ", size, " ranks"));
    }
  });
}

// backward() returns before a kernel that was enqueued before it has ended, and some buckets have started
// before the last gradient.
void check_overlap(int size) {
  std::vector<int> devices;
  for (int i = 0; i < size; ++i) devices.push_back(i);
  run_world(devices, absl::Minutes(2), [](const Group& group, int rank) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
    auto net = std::make_shared<NetImpl>();
    net->to(device);
    DistributedDataParallel<NetImpl> model(net, {.group = group, .bucket_cap_mb = kTinyMiB});
    const at::Tensor share = integers({kRows, 4}, rank).to(device);
    for (int pass = 0; pass < 2; ++pass) model.forward(share).sum().backward();
    std::size_t started = 0;
    net->first->weight.register_hook(
        [&](const at::Tensor&) { started = model.reducer().started_reductions(); });
    c10::cuda::device_synchronize();
    sleep_on_device(absl::Milliseconds(200));
    const absl::Time begun = absl::Now();
    model.forward(share).sum().backward();
    check(absl::Now() - begun < absl::Milliseconds(100), "backward() does not block the host");
    check(started >= 2, absl::StrCat("reductions overlap backward: started ", started));
    c10::cuda::device_synchronize();
  });
}

int run() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    std::printf("skipped: no GPU that CUDA can use (%s)\n",
                found == cudaSuccess ? "no GPU found" : cudaGetErrorString(found));
  }
  for (int size = 1; size <= count; ++size) {
    for (const double cap : {25.0, kTinyMiB}) check_steps(size, cap);
    check_overlap(size);
    std::printf("DistributedDataParallel on %d ranks: done\n", size);
  }
  std::printf("%d passed, %d failed\n", passes(), failures());
  return failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gradwire::collectives::nccl_check

int main() { return gradwire::collectives::nccl_check::run(); }
