#include <ATen/Parallel.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/bench/run/footprint.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gradwire/tools/bench/suites/flat_mlp.h"
#include "gradwire/tools/bench/suites/tensor_rpc.h"
#include "gradwire/tools/bench/systems/gradwire_member.h"
#include "gradwire/tools/bench/systems/gradwire_stream.h"
#include "gradwire/tools/bench/systems/handlers.h"

namespace gradwire::bench {
namespace {

// Gradwire, called through its public functions (rpc/rpc.h).
class GradwireRpc final : public GradwireMember, private TensorRpc {
 public:
  void join(const Endpoint& endpoint) override {
    // One compute thread, as for the peers.
    at::set_num_threads(1);
    GradwireMember::join(endpoint);
    for (int i = 0; i < endpoint.size; ++i)
      workers_.push_back(agent()->get_worker_info(absl::StrCat("w", i)));
    before_contact_ = footprint();
  }
  Measurement run(const Task& task) override {
    if (task.case_name == kFootprintCase) return growth_per_peer(before_contact_, endpoint().size - 1);
    if (parse_case(task.case_name).operation == "stream") return run_stream(agent(), worker(0), task);
    return run_tensor_case(*this, endpoint(), task);
  }

 private:
  void nothing(int to) override { agent()->rpc_sync<&bench::nothing>(worker(to)); }
  absl::AnyInvocable<void()> nothing_async(int to) override {
    return [future = agent()->rpc_async<&bench::nothing>(worker(to))] { future.wait(); };
  }
  at::Tensor add(int to, const at::Tensor& x, const at::Tensor& y) override {
    return agent()->rpc_sync<at::Tensor>(worker(to), op_add_, x, y);
  }
  absl::AnyInvocable<at::Tensor()> add_async(int to, const at::Tensor& x, const at::Tensor& y) override {
    return [future = agent()->rpc_async<at::Tensor>(worker(to), op_add_, x, y)] { return future.wait(); };
  }
  absl::AnyInvocable<int64_t()> nap_async(int to, int64_t microseconds) override {
    return [future = agent()->rpc_async<&nap>(worker(to), microseconds)] { return future.wait(); };
  }
  at::Tensor echo(int to, const at::Tensor& x) override {
    return agent()->rpc_sync<&bench::echo>(worker(to), x);
  }
  double sum(int to, const at::Tensor& x) override {
    return agent()->rpc_async<&bench::sum>(worker(to), x).wait();
  }
  double sum_lent(int to, const at::Tensor& x) override {
    return agent()->rpc_sync<&bench::sum>(worker(to), x);
  }
  double sum_moved(int to, at::Tensor x) override {
    return agent()->rpc_sync<&bench::sum>(worker(to), std::move(x));
  }
  at::Tensor tensor_for(int to, int64_t floats) override {
    return rpc::empty_for(agent(), worker(to), {floats}, at::kFloat);
  }
  at::Tensor pass(int to, at::Tensor x) override {
    return agent()->rpc_sync<&bench::pass>(worker(to), std::move(x));
  }
  at::Tensor pull(int to, int64_t floats) override {
    return agent()->rpc_sync<&pull_resident>(worker(to), floats);
  }
  void push_gradient(int to, const at::Tensor& gradient) override {
    server(to).rpc_sync<&ParameterServer::push>(gradient);
  }
  at::Tensor pull_parameters(int to) override { return server(to).rpc_sync<&ParameterServer::pull>(); }
  at::Tensor pull_model(int to) override { return agent()->rpc_sync<&model_parameters>(worker(to)); }
  void push_model(int to, const at::Tensor& gradient) override {
    agent()->rpc_sync<&apply_model_gradient>(worker(to), gradient);
  }

  const rpc::WorkerInfo& worker(int rank) const { return workers_.at(static_cast<std::size_t>(rank)); }
  const rpc::RRef<ParameterServer>& server(int to) {
    if (!server_) server_ = agent()->rpc_sync<&parameter_server>(worker(to));
    return *server_;
  }

  const rpc::Op op_add_{"aten::add"};
  Footprint before_contact_;
  std::vector<rpc::WorkerInfo> workers_;
  std::optional<rpc::RRef<ParameterServer>> server_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_rpc() { return std::make_unique<GradwireRpc>(); }

}  // namespace gradwire::bench
