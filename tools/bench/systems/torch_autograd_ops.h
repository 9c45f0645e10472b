#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <memory>
#include <vector>

namespace gradwire::bench {

// Begins a call in the current autograd context of torch, as torch's Python front end does for a function.
// torch_autograd_ops.cc registers the operators: aten::gradwire_bench_add_along, _make_layer, _layer,
// _sgd_step.
c10::intrusive_ptr<c10::ivalue::Future> call_in_context(torch::distributed::rpc::RpcAgent& agent,
                                                        const torch::distributed::rpc::WorkerInfo& to,
                                                        const std::shared_ptr<torch::jit::Operator>& op,
                                                        std::vector<c10::IValue> arguments);

}  // namespace gradwire::bench
