// The operators that torch's calls in the suite autograd use. Without Python a worker of torch serves only
// operators of the namespace aten, so they are registered there.
#include "gradwire/tools/bench/systems/torch_autograd_ops.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/library.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "gradwire/tools/bench/suites/mlp.h"
#include "gradwire/tools/bench/systems/torch_agent.h"

namespace gradwire::bench {

namespace tautograd = torch::distributed::autograd;
namespace trpc = torch::distributed::rpc;

c10::intrusive_ptr<c10::ivalue::Future> call_in_context(trpc::RpcAgent& agent, const trpc::WorkerInfo& to,
                                                        const std::shared_ptr<torch::jit::Operator>& op,
                                                        std::vector<c10::IValue> arguments) {
  return tautograd::sendMessageWithAutograd(agent, to, trpc::ScriptCall(op, std::move(arguments)).toMessage(),
                                            /*forceGradRecording=*/true);
}

namespace {

at::Tensor add_along_by_operator(const at::Tensor& x, const at::Tensor& y, int64_t additions) {
  at::Tensor sum = x.add(y);
  if (additions <= 1) return sum;
  static const auto& op =
      *new std::shared_ptr<torch::jit::Operator>(TorchAgent::operation("aten::gradwire_bench_add_along"));
  const std::shared_ptr<trpc::RpcAgent> agent = trpc::RpcAgent::getCurrentRpcAgent();
  const auto next = static_cast<trpc::worker_id_t>(agent->getWorkerInfo().id_ + 1);
  const auto answer = call_in_context(*agent, agent->getWorkerInfo(next), op, {sum, y, additions - 1});
  return TorchAgent::result(*answer).toTensor();
}

// The layer of this process and its optimizer. The counterpart of _LocalOptimizer in torch.distributed.optim,
// which passes the gradients of the context to a functional optimizer with the same arithmetic.
struct ResidentLayer {
  MlpLayer layer;
  torch::optim::SGD optimizer;
  explicit ResidentLayer(int64_t number)
      : layer(number), optimizer(layer.parameters(), torch::optim::SGDOptions(kMlpLearningRate)) {}
};

std::mutex layer_mutex;
std::shared_ptr<ResidentLayer> resident_layer;

std::shared_ptr<ResidentLayer> local_layer() {
  const std::lock_guard<std::mutex> lock(layer_mutex);
  if (resident_layer == nullptr) {
    throw std::runtime_error("this worker has no layer; call gradwire_bench_make_layer first");
  }
  return resident_layer;
}

int64_t make_layer(int64_t number) {
  auto made = std::make_shared<ResidentLayer>(number);
  const std::lock_guard<std::mutex> lock(layer_mutex);
  resident_layer = std::move(made);
  return number;
}

at::Tensor layer_forward(const at::Tensor& x) { return local_layer()->layer.forward(x); }

int64_t sgd_step(int64_t context) {
  const std::shared_ptr<ResidentLayer> layer = local_layer();
  const c10::Dict<at::Tensor, at::Tensor> gradients =
      tautograd::DistAutogradContainer::getInstance().retrieveContext(context)->getGradients();
  for (const at::Tensor& parameter : layer->layer.parameters()) {
    parameter.mutable_grad() = gradients.at(parameter);
  }
  layer->optimizer.step();
  return static_cast<int64_t>(gradients.size());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten, library) {
  library.def("gradwire_bench_add_along(Tensor x, Tensor y, int additions) -> Tensor",
              &add_along_by_operator);
  library.def("gradwire_bench_make_layer(int number) -> int", &make_layer);
  library.def("gradwire_bench_layer(Tensor x) -> Tensor", &layer_forward);
  library.def("gradwire_bench_sgd_step(int context) -> int", &sgd_step);
}

}  // namespace gradwire::bench
