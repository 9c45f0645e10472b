#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <optional>

#include "gradwire/autograd/autograd.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/bench/cuda/cuda_cases.h"
#include "gradwire/tools/bench/cuda/cuda_processes.h"
#include "gradwire/tools/bench/suites/resident.h"
#include "gradwire/tools/bench/systems/gradwire_member.h"

namespace gradwire::bench {
namespace {

at::Tensor cuda_echo(at::Tensor x) { return x; }

class CudaServer {
 public:
  void push(const at::Tensor& gradient) { parameters_.sub_(gradient); }
  at::Tensor pull() const { return parameters_; }

 private:
  const at::Tensor parameters_ =
      at::full({kServerFloats}, 0.5, at::TensorOptions().dtype(at::kFloat).device(kGpu));
};

// Gradwire, called through its public functions.
class GradwireCuda final : public GradwireMember, private CudaRpc {
 public:
  void join(const Endpoint& endpoint) override {
    begin_cuda();
    GradwireMember::join(endpoint);
    server_worker_ = agent()->get_worker_info("w0");
  }
  Measurement run(const Task& task) override {
    const rpc::AgentGuard guard(agent());
    return run_cuda_case(*this, task);
  }

 private:
  at::Tensor add(const at::Tensor& x, const at::Tensor& y) override {
    return rpc::rpc_sync<at::Tensor>(server_worker_, op_add_, x, y);
  }
  at::Tensor echo(const at::Tensor& x) override { return rpc::rpc_sync<&cuda_echo>(server_worker_, x); }
  void push_gradient(const at::Tensor& gradient) override { server().rpc_sync<&CudaServer::push>(gradient); }
  at::Tensor pull_parameters() override { return server().rpc_sync<&CudaServer::pull>(); }
  at::Tensor remote_add(const at::Tensor& x, const at::Tensor& y) override {
    const autograd::Context context;
    autograd::backward(context, {rpc::rpc_sync<at::Tensor>(server_worker_, op_add_, x, y).sum()});
    return autograd::get_gradients(context).at(y);
  }
  const rpc::RRef<CudaServer>& server() {
    if (!server_) server_ = rpc::remote<CudaServer>(server_worker_);
    return *server_;
  }

  const rpc::Op op_add_{"aten::add"};
  rpc::WorkerInfo server_worker_;
  std::optional<rpc::RRef<CudaServer>> server_;
};

GRADWIRE_RPC(cuda_echo)
GRADWIRE_RPC_CLASS(CudaServer)
GRADWIRE_RPC_METHOD(CudaServer, push)
GRADWIRE_RPC_METHOD(CudaServer, pull)

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_cuda() { return std::make_unique<GradwireCuda>(); }

}  // namespace gradwire::bench
