#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "gradwire/tools/bench/data_parallel/ddp_step.h"

namespace gradwire::bench {
namespace {

constexpr int64_t kFirstBytes = int64_t{1} << 20;
constexpr int64_t kBytes = int64_t{25} << 20;

// Calls torch's Reducer as torch.nn.parallel.DistributedDataParallel does, but without Python.
class GlooReplica final : public StepReplica {
 public:
  GlooReplica(int rank, int size, int port, int64_t layers, int64_t width) : chain_(layers, width) {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<std::uint16_t>(port);
    store_options.isServer = rank == 0;
    store_options.waitWorkers = false;
    const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store_options);
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group_->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo_);
    group_->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);

    const std::vector<bool> dense(chain_.weights.size(), false);
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        chain_.weights, {static_cast<std::size_t>(kFirstBytes), static_cast<std::size_t>(kBytes)}, dense);
    std::reverse(buckets.begin(), buckets.end());
    reducer_ = std::make_unique<c10d::Reducer>(
        chain_.weights, buckets, group_, dense, kBytes, /*find_unused_parameters=*/false,
        /*gradient_as_bucket_view=*/true, std::unordered_map<std::size_t, std::string>(), kFirstBytes,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>());
  }

  void step(const at::Tensor& x) override {
    zero_grad();
    reducer_->prepare_for_forward();
    if (reducer_->should_rebuild_buckets()) reducer_->rebuild_buckets();
    const at::Tensor loss = chain_.loss(x);
    reducer_->prepare_for_backward({});
    loss.backward();
  }
  // Without prepare_for_backward() the reducer's hooks only note the gradients.
  void step_alone(const at::Tensor& x) override {
    zero_grad();
    chain_.loss(x).backward();
  }
  void all_reduce(const at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors = {tensor};
    gloo_->allreduce(tensors)->wait();
  }

 private:
  void zero_grad() {
    for (at::Tensor& weight : chain_.weights) weight.mutable_grad().reset();
  }

  LayerChain chain_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace

std::unique_ptr<StepReplica> make_gloo_replica(int rank, int size, int port, int64_t layers, int64_t width) {
  return std::make_unique<GlooReplica>(rank, size, port, layers, width);
}

}  // namespace gradwire::bench
