#pragma once

#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// A worker of torch's RPC in this process, with functions to call operators. Its name is "w<rank>"; member 0
// hosts the store. The process must end without running destructors.
class TorchAgent {
 public:
  std::string listen(const Endpoint& endpoint);
  // Transport "shm": torch chooses its transports itself, as by default. Transport "tcp": only its transport
  // uv. Tensors on `devices` of one member arrive on the same devices of the others.
  void join(const Endpoint& endpoint, const std::vector<c10::Device>& devices = {});

  torch::distributed::rpc::RpcAgent& agent() const { return *agent_; }
  const torch::distributed::rpc::WorkerInfo& worker(int rank) const {
    return workers_.at(static_cast<std::size_t>(rank));
  }
  // Returns the operator with this name and overload, for example ("aten::add", "Tensor"). torch can call
  // only operators of the namespace aten. Throws std::runtime_error if there is no such operator.
  static std::shared_ptr<torch::jit::Operator> operation(const std::string& name,
                                                         const std::string& overload = "");
  // Begins a call of the operator at member `to`.
  c10::intrusive_ptr<c10::ivalue::Future> call(int to, const std::shared_ptr<torch::jit::Operator>& op,
                                               std::vector<c10::IValue> arguments) const;
  // Waits for the result of a call. Throws the error of the call if it failed.
  static c10::IValue result(c10::ivalue::Future& future);

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<torch::distributed::rpc::TensorPipeAgent> agent_;
  std::vector<torch::distributed::rpc::WorkerInfo> workers_;
};

}  // namespace gradwire::bench
