#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "gradwire/tools/bench/collectives/collective_member.h"

namespace gradwire::bench {
namespace {

// Gloo, used as torch.distributed uses it, but without Python.
class GlooCollectives final : public CollectiveMember {
 private:
  int host_store() override {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    return store_->getPort();
  }

  void join_group(const Endpoint& endpoint, int port) override {
    if (!store_) {
      c10d::TCPStoreOptions options;
      options.port = static_cast<std::uint16_t>(port);
      options.waitWorkers = false;
      store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    }
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(30));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, endpoint.rank, endpoint.size, options);
  }

  void call(const collective_work& work, CollectiveTensors& tensors) override {
    const int last = work.ranks - 1;
    std::vector<at::Tensor> part = {tensors.part};
    switch (work.operation) {
      case COLLECTIVE_ALL_REDUCE:
        return wait(group_->allreduce(part));
      case COLLECTIVE_BROADCAST: {
        c10d::BroadcastOptions options;
        options.rootRank = last;
        return wait(group_->broadcast(part, options));
      }
      case COLLECTIVE_REDUCE:
        return wait(group_->reduce(part));
      case COLLECTIVE_ALL_GATHER:
        return wait(group_->_allgather_base(tensors.whole, tensors.part));
      case COLLECTIVE_GATHER: {
        std::vector<std::vector<at::Tensor>> lists;
        if (work.rank == 0) lists.push_back(tensors.list);
        return wait(group_->gather(lists, part));
      }
      case COLLECTIVE_SCATTER: {
        c10d::ScatterOptions options;
        options.rootRank = last;
        std::vector<std::vector<at::Tensor>> lists;
        if (work.rank == last) lists.push_back(tensors.list);
        return wait(group_->scatter(part, lists, options));
      }
      case COLLECTIVE_REDUCE_SCATTER:
        return wait(group_->_reduce_scatter_base(tensors.part, tensors.whole));
      case COLLECTIVE_ALL_TO_ALL: {
        std::vector<int64_t> equal;
        return wait(group_->alltoall_base(tensors.result, tensors.whole, equal, equal));
      }
      case COLLECTIVE_BARRIER:
        return wait(group_->barrier());
      case COLLECTIVE_SEND_RECV: {
        std::vector<at::Tensor> into = {tensors.received};
        const auto sent = group_->send(part, (work.rank + 1) % work.ranks, 0);
        wait(group_->recv(into, (work.rank + last) % work.ranks, 0));
        return wait(sent);
      }
      default:
        throw std::invalid_argument("unknown collective operation");
    }
  }

  static void wait(const c10::intrusive_ptr<c10d::Work>& work) { work->wait(); }

  c10::intrusive_ptr<c10d::TCPStore> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_gloo_collectives() { return std::make_unique<GlooCollectives>(); }

}  // namespace gradwire::bench
