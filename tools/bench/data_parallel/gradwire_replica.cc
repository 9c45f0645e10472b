#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/distributed_data_parallel.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tools/bench/data_parallel/ddp_step.h"

namespace gradwire::bench {
namespace {

struct ChainModule : torch::nn::Module {
  ChainModule(int64_t layers, int64_t width) : chain(layers, width) {
    for (std::size_t i = 0; i < chain.weights.size(); ++i) {
      register_parameter("weight" + std::to_string(i), chain.weights[i]);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return chain.loss(x); }
  const LayerChain chain;
};

class GradwireReplica final : public StepReplica {
 public:
  GradwireReplica(int rank, int size, int port, int64_t layers, int64_t width)
      : group_(collectives::ProcessGroup::create(
            {.backend = "cpu",
             .timeout = absl::Seconds(60),
             .world_size = size,
             .rank = rank,
             .store = std::make_shared<store::TcpStore>("127.0.0.1", port,
                                                        store::TcpStoreOptions{.is_master = rank == 0})})),
        module_(std::make_shared<ChainModule>(layers, width)),
        model_(module_, {.group = group_}) {}

  void step(const at::Tensor& x) override {
    module_->zero_grad();
    model_.forward(x).backward();
  }
  void step_alone(const at::Tensor& x) override {
    module_->zero_grad();
    const auto guard = model_.no_sync();
    model_.forward(x).backward();
  }
  void all_reduce(const at::Tensor& tensor) override { group_->all_reduce(tensor); }

 private:
  const std::shared_ptr<collectives::ProcessGroup> group_;
  const std::shared_ptr<ChainModule> module_;
  data_parallel::DistributedDataParallel<ChainModule> model_;
};

}  // namespace

std::unique_ptr<StepReplica> make_gradwire_replica(int rank, int size, int port, int64_t layers,
                                                   int64_t width) {
  return std::make_unique<GradwireReplica>(rank, size, port, layers, width);
}

}  // namespace gradwire::bench
