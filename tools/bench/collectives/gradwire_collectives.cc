#include <stdexcept>

#include "gradwire/collectives/collectives.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tools/bench/collectives/collective_member.h"

namespace gradwire::bench {
namespace {

class GradwireCollectives final : public CollectiveMember {
 private:
  int host_store() override {
    store_ = std::make_shared<store::TcpStore>("127.0.0.1", 0, store::TcpStoreOptions{.is_master = true});
    return store_->port();
  }

  void join_group(const Endpoint& endpoint, int port) override {
    if (store_ == nullptr) store_ = std::make_shared<store::TcpStore>("127.0.0.1", port);
    collectives::ProcessGroupOptions options;
    options.backend = "cpu";
    options.timeout = absl::Seconds(30);
    options.world_size = endpoint.size;
    options.rank = endpoint.rank;
    options.store = store_;
    group_ = collectives::ProcessGroup::create(options);
  }

  void call(const collective_work& work, CollectiveTensors& tensors) override {
    const int last = work.ranks - 1;
    switch (work.operation) {
      case COLLECTIVE_ALL_REDUCE:
        return group_->all_reduce(tensors.part);
      case COLLECTIVE_BROADCAST:
        return group_->broadcast(tensors.part, last);
      case COLLECTIVE_REDUCE:
        return group_->reduce(tensors.part, 0);
      case COLLECTIVE_ALL_GATHER:
        return group_->all_gather_into_tensor(tensors.whole, tensors.part);
      case COLLECTIVE_GATHER:
        return group_->gather(tensors.part, work.rank == 0 ? tensors.list : std::vector<at::Tensor>(), 0);
      case COLLECTIVE_SCATTER:
        return group_->scatter(tensors.part, work.rank == last ? tensors.list : std::vector<at::Tensor>(),
                               last);
      case COLLECTIVE_REDUCE_SCATTER:
        return group_->reduce_scatter_tensor(tensors.part, tensors.whole);
      case COLLECTIVE_ALL_TO_ALL:
        return group_->all_to_all_single(tensors.result, tensors.whole);
      case COLLECTIVE_BARRIER:
        return group_->barrier();
      case COLLECTIVE_SEND_RECV: {
        const auto sent = group_->isend(tensors.part, (work.rank + 1) % work.ranks);
        group_->recv(tensors.received, (work.rank + last) % work.ranks);
        return sent->wait();
      }
      default:
        throw std::invalid_argument("unknown collective operation");
    }
  }

  std::shared_ptr<store::TcpStore> store_;
  std::shared_ptr<collectives::ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_collectives() { return std::make_unique<GradwireCollectives>(); }

}  // namespace gradwire::bench
