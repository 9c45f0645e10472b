#include <ATen/Parallel.h>
#include <torch/library.h>
#include <unistd.h>

#include <utility>

#include "gradwire/tools/bench/run/footprint.h"
#include "gradwire/tools/bench/suites/flat_mlp.h"
#include "gradwire/tools/bench/suites/resident.h"
#include "gradwire/tools/bench/suites/tensor_rpc.h"
#include "gradwire/tools/bench/systems/torch_agent.h"
#include "gradwire/tools/bench/systems/torch_member.h"

namespace gradwire::bench {
namespace {

int64_t own_process() { return getpid(); }

at::Tensor echo_operator(const at::Tensor& x) { return x; }

at::Tensor pass_operator(const at::Tensor& x) {
  x.mutable_data_ptr<float>()[0] += 1;
  return x;
}

at::Tensor server_parameters() { return resident_parameter(kServerFloats); }

// The operators without a result return a number because torch requires exactly one result of an operator
// that is called remotely.
int64_t nothing_operator() { return 0; }

int64_t push_operator(const at::Tensor& gradient) {
  server_parameters().sub_(gradient);
  return gradient.numel();
}

}  // namespace

// Without Python a worker of torch serves only operators of the namespace aten, so the operators are
// registered there.
TORCH_LIBRARY_FRAGMENT(aten, library) {
  library.def("gradwire_bench_nothing() -> int", &nothing_operator);
  library.def("gradwire_bench_model() -> Tensor", &model_parameters);
  library.def("gradwire_bench_push_model(Tensor gradient) -> int", &apply_model_gradient);
  library.def("gradwire_bench_nap(int microseconds) -> int", &sleep_for);
  library.def("gradwire_bench_process_id() -> int", &own_process);
  library.def("gradwire_bench_echo(Tensor x) -> Tensor", &echo_operator);
  library.def("gradwire_bench_pass(Tensor x) -> Tensor", &pass_operator);
  library.def("gradwire_bench_resident(int floats) -> Tensor", &resident_parameter);
  library.def("gradwire_bench_push(Tensor gradient) -> int", &push_operator);
  library.def("gradwire_bench_pull() -> Tensor", &server_parameters);
}

namespace {

class TorchRpc final : public BenchProcess, private TensorRpc {
 public:
  std::string listen(const Endpoint& endpoint) override { return torch_.listen(endpoint); }
  void join(const Endpoint& endpoint) override {
    at::set_num_threads(1);
    endpoint_ = endpoint;
    add_ = TorchAgent::operation("aten::add", "Tensor");
    sum_ = TorchAgent::operation("aten::sum");
    nothing_ = TorchAgent::operation("aten::gradwire_bench_nothing");
    model_ = TorchAgent::operation("aten::gradwire_bench_model");
    push_model_ = TorchAgent::operation("aten::gradwire_bench_push_model");
    nap_ = TorchAgent::operation("aten::gradwire_bench_nap");
    echo_ = TorchAgent::operation("aten::gradwire_bench_echo");
    pass_ = TorchAgent::operation("aten::gradwire_bench_pass");
    resident_ = TorchAgent::operation("aten::gradwire_bench_resident");
    push_ = TorchAgent::operation("aten::gradwire_bench_push");
    pull_ = TorchAgent::operation("aten::gradwire_bench_pull");
    torch_.join(endpoint);
    before_contact_ = footprint();
  }
  Measurement run(const Task& task) override {
    if (task.case_name == kFootprintCase) return growth_per_peer(before_contact_, endpoint_.size - 1);
    return run_tensor_case(*this, endpoint_, task);
  }

 private:
  void nothing(int to) override { TorchAgent::result(*torch_.call(to, nothing_, {})); }
  absl::AnyInvocable<void()> nothing_async(int to) override {
    return [future = torch_.call(to, nothing_, {})] { TorchAgent::result(*future); };
  }
  at::Tensor add(int to, const at::Tensor& x, const at::Tensor& y) override {
    return tensor(to, add_, {x, y, 1});
  }
  absl::AnyInvocable<at::Tensor()> add_async(int to, const at::Tensor& x, const at::Tensor& y) override {
    return [future = torch_.call(to, add_, {x, y, 1})] { return TorchAgent::result(*future).toTensor(); };
  }
  absl::AnyInvocable<int64_t()> nap_async(int to, int64_t microseconds) override {
    return [future = torch_.call(to, nap_, {microseconds})] { return TorchAgent::result(*future).toInt(); };
  }
  at::Tensor echo(int to, const at::Tensor& x) override { return tensor(to, echo_, {x}); }
  // torch has only one way to pass a tensor: it reads the caller's memory at an undefined time.
  double sum(int to, const at::Tensor& x) override {
    return tensor(to, sum_, {x, c10::IValue()}).item<double>();
  }
  double sum_lent(int to, const at::Tensor& x) override { return sum(to, x); }
  double sum_moved(int to, at::Tensor x) override { return sum(to, x); }
  at::Tensor tensor_for(int, int64_t floats) override { return at::empty({floats}, at::kFloat); }
  at::Tensor pass(int to, at::Tensor x) override { return tensor(to, pass_, {std::move(x)}); }
  at::Tensor pull(int to, int64_t floats) override { return tensor(to, resident_, {floats}); }
  void push_gradient(int to, const at::Tensor& gradient) override {
    TorchAgent::result(*torch_.call(to, push_, {gradient}));
  }
  at::Tensor pull_parameters(int to) override { return tensor(to, pull_, {}); }
  at::Tensor pull_model(int to) override { return tensor(to, model_, {}); }
  void push_model(int to, const at::Tensor& gradient) override {
    TorchAgent::result(*torch_.call(to, push_model_, {gradient}));
  }

  at::Tensor tensor(int to, const std::shared_ptr<torch::jit::Operator>& op,
                    std::vector<c10::IValue> arguments) const {
    return TorchAgent::result(*torch_.call(to, op, std::move(arguments))).toTensor();
  }

  TorchAgent torch_;
  Endpoint endpoint_;
  Footprint before_contact_;
  std::shared_ptr<torch::jit::Operator> add_, sum_, nap_, echo_, pass_, resident_, push_, pull_;
  std::shared_ptr<torch::jit::Operator> nothing_, model_, push_model_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_torch_rpc() { return std::make_unique<TorchRpc>(); }

}  // namespace gradwire::bench
