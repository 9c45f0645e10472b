#pragma once

#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/tools/bench/run/participant.h"

namespace gradwire::bench {

// A worker of torch's RPC in this process, and what it takes to call operators with it. Member `rank` is
// "w<rank>", member 0 holds the store. The process must end without running its destructors.
class TorchAgent {
 public:
  std::string listen(const Place& place);
  // transport "shm": what torch chooses by itself on one host; "tcp": its uv transport alone.
  void join(const Place& place);

  torch::distributed::rpc::RpcAgent& agent() const { return *agent_; }
  const torch::distributed::rpc::WorkerInfo& worker(int rank) const {
    return workers_.at(static_cast<std::size_t>(rank));
  }
  // The overload with this schema name: ("aten::add", "Tensor"). torch calls operators of aten alone.
  static std::shared_ptr<torch::jit::Operator> operation(const std::string& name,
                                                         const std::string& overload = "");
  c10::intrusive_ptr<c10::ivalue::Future> call(int to, const std::shared_ptr<torch::jit::Operator>& op,
                                               std::vector<c10::IValue> arguments) const;
  // Waits; throws what the call failed with.
  static c10::IValue result(c10::ivalue::Future& future);

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<torch::distributed::rpc::TensorPipeAgent> agent_;
  std::vector<torch::distributed::rpc::WorkerInfo> workers_;
};

}  // namespace gradwire::bench
