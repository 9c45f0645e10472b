#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/library.h>

#include <mutex>
#include <utility>
#include <vector>

#include "gradwire/tools/bench/cuda/cuda_cases.h"
#include "gradwire/tools/bench/cuda/cuda_processes.h"
#include "gradwire/tools/bench/suites/resident.h"
#include "gradwire/tools/bench/systems/torch_agent.h"

namespace gradwire::bench {
namespace {

namespace tautograd = torch::distributed::autograd;

// The parameters of the server. torch runs each call on other streams and does not order them, so a program
// has to do it, here with an event.
struct Server {
  std::mutex mutex;
  at::Tensor parameters = at::full({kServerFloats}, 0.5, at::TensorOptions().dtype(at::kFloat).device(kGpu));
  at::cuda::CUDAEvent changed;
  Server() { changed.record(c10::cuda::getCurrentCUDAStream(kGpu.index())); }
};

Server& server() {
  static auto& only = *new Server;
  return only;
}

// Returns a number because torch requires exactly one result of an operator that is called remotely.
int64_t push_operator(const at::Tensor& gradient) {
  Server& to = server();
  const std::lock_guard<std::mutex> lock(to.mutex);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(kGpu.index());
  to.changed.block(stream);
  to.parameters.sub_(gradient);
  to.changed.record(stream);
  return gradient.numel();
}

at::Tensor pull_operator() {
  Server& from = server();
  const std::lock_guard<std::mutex> lock(from.mutex);
  from.changed.block(c10::cuda::getCurrentCUDAStream(kGpu.index()));
  return from.parameters;
}

at::Tensor echo_operator(const at::Tensor& x) { return x; }

}  // namespace

// As in torch_rpc.cc: without Python a worker of torch serves only operators of the namespace aten.
TORCH_LIBRARY_FRAGMENT(aten, library) {
  library.def("gradwire_bench_cuda_echo(Tensor x) -> Tensor", &echo_operator);
  library.def("gradwire_bench_cuda_push(Tensor gradient) -> int", &push_operator);
  library.def("gradwire_bench_cuda_pull() -> Tensor", &pull_operator);
}

namespace {

// torch's TensorPipeAgent. It chooses its transports and channels itself, as by default.
class TorchCuda final : public BenchProcess, private CudaRpc {
 public:
  std::string listen(const Endpoint& endpoint) override { return torch_.listen(endpoint); }
  void join(const Endpoint& endpoint) override {
    begin_cuda();
    add_ = TorchAgent::operation("aten::add", "Tensor");
    echo_ = TorchAgent::operation("aten::gradwire_bench_cuda_echo");
    push_ = TorchAgent::operation("aten::gradwire_bench_cuda_push");
    pull_ = TorchAgent::operation("aten::gradwire_bench_cuda_pull");
    torch_.join(endpoint, {kGpu});
  }
  Measurement run(const Task& task) override { return run_cuda_case(*this, task); }

 private:
  at::Tensor add(const at::Tensor& x, const at::Tensor& y) override { return tensor(add_, {x, y, 1}); }
  at::Tensor echo(const at::Tensor& x) override { return tensor(echo_, {x}); }
  void push_gradient(const at::Tensor& gradient) override {
    TorchAgent::result(*torch_.call(kServer, push_, {gradient}));
  }
  at::Tensor pull_parameters() override { return tensor(pull_, {}); }

  // The steps of torch's Python front end for a call in a context, and for backward().
  at::Tensor remote_add(const at::Tensor& x, const at::Tensor& y) override {
    auto& container = tautograd::DistAutogradContainer::getInstance();
    const tautograd::ContextPtr context = container.newContext();
    auto message = torch::distributed::rpc::ScriptCall(add_, {x, y, 1}).toMessage();
    const auto answer =
        tautograd::sendMessageWithAutograd(torch_.agent(), torch_.worker(kServer), std::move(message));
    const at::Tensor loss = TorchAgent::result(*answer).toTensor().sum();
    tautograd::DistEngine::getInstance().execute(context->contextId(), {loss}, /*retainGraph=*/false);
    // This makes the current streams wait for the gradients, as get_gradients() of the front end does.
    at::Tensor gradient = context->getGradients().at(y);
    container.releaseContext(context->contextId());
    return gradient;
  }

  at::Tensor tensor(const std::shared_ptr<torch::jit::Operator>& op, std::vector<c10::IValue> arguments) {
    return TorchAgent::result(*torch_.call(kServer, op, std::move(arguments))).toTensor();
  }

  static constexpr int kServer = 0;
  TorchAgent torch_;
  std::shared_ptr<torch::jit::Operator> add_, echo_, push_, pull_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_torch_cuda() { return std::make_unique<TorchCuda>(); }

}  // namespace gradwire::bench
