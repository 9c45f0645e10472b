#include <ATen/Parallel.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gradwire/tools/bench/suites/training.h"
#include "gradwire/tools/bench/systems/autograd_handlers.h"
#include "gradwire/tools/bench/systems/gradwire_member.h"

namespace gradwire::bench {
namespace {

using Sgd = torch::optim::SGD;

autograd::BackwardOptions options(bool fast) {
  return {.mode = fast ? autograd::BackwardMode::kFast : autograd::BackwardMode::kSmart};
}

class GradwireAutograd final : public GradwireMember {
 public:
  void join(const Endpoint& endpoint) override {
    at::set_num_threads(1);
    GradwireMember::join(endpoint);
  }

  Measurement run(const Task& task) override {
    const rpc::AgentGuard guard(agent());
    const std::string operation = parse_case(task.case_name).operation;
    if (operation == "remote_add") return remote_add(task);
    if (operation == "chain") return chain(task);
    if (operation == "fanout") return fanout(task);
    if (operation == "mlp") return mlp(task);
    throw std::invalid_argument("unknown case " + task.case_name);
  }

 private:
  // The number of other workers. The trainer has the last rank; the others have the ranks 0 to workers() - 1.
  int workers() const { return endpoint().size - 1; }

  Measurement remote_add(const Task& task) {
    const rpc::WorkerInfo other = agent()->get_worker_info("w0");
    const rpc::Op op_add("aten::add");
    at::Tensor gradient;
    const auto step = [&](bool fast) {
      const autograd::Context context;
      const at::Tensor loss = rpc::rpc_sync<at::Tensor>(other, op_add, leaves_.x(), leaves_.y()).sum();
      autograd::backward(context, {loss}, options(fast));
      gradient = autograd::get_gradients(context).at(leaves_.y());
    };
    return run_training(task, {.run = step,
                               .check = [&] { check_gradient(std::exchange(gradient, at::Tensor()), 1); },
                               .local = [&] { leaves_.add_up_locally(1); },
                               .has_modes = true});
  }

  Measurement chain(const Task& task) {
    const rpc::WorkerInfo first = agent()->get_worker_info("w0");
    at::Tensor gradient;
    const auto step = [&](bool fast) {
      const autograd::Context context;
      const at::Tensor loss = rpc::rpc_sync<&add_along>(first, leaves_.x(), leaves_.y(), workers()).sum();
      autograd::backward(context, {loss}, options(fast));
      gradient = autograd::get_gradients(context).at(leaves_.y());
    };
    const auto want = static_cast<float>(workers());
    return run_training(task, {.run = step,
                               .check = [&] { check_gradient(std::exchange(gradient, at::Tensor()), want); },
                               .local = [&] { leaves_.add_up_locally(workers()); },
                               .hops = workers(),
                               .has_modes = true});
  }

  Measurement fanout(const Task& task) {
    std::vector<rpc::WorkerInfo> others;
    for (int i = 0; i < workers(); ++i) others.push_back(agent()->get_worker_info("w" + std::to_string(i)));
    const rpc::Op op_add("aten::add");
    at::Tensor gradient;
    const auto step = [&](bool fast) {
      const autograd::Context context;
      std::vector<Future<at::Tensor>> sums;
      for (const rpc::WorkerInfo& other : others) {
        sums.push_back(rpc::rpc_async<at::Tensor>(other, op_add, leaves_.x(), leaves_.y()));
      }
      at::Tensor total = sums[0].wait();
      for (std::size_t i = 1; i < sums.size(); ++i) total = total.add(sums[i].wait());
      autograd::backward(context, {total.sum()}, options(fast));
      gradient = autograd::get_gradients(context).at(leaves_.y());
    };
    const auto want = static_cast<float>(workers());
    return run_training(task, {.run = step,
                               .check = [&] { check_gradient(std::exchange(gradient, at::Tensor()), want); },
                               .local = [&] { leaves_.fan_out_locally(workers()); },
                               .hops = workers(),
                               .has_modes = true});
  }

  Measurement mlp(const Task& task) {
    const auto first = rpc::remote<MlpServer>("w0", int64_t{0});
    const auto second = rpc::remote<MlpServer>("w1", int64_t{1});
    std::vector<rpc::RRef<at::Tensor>> parameters = first.rpc_sync<&MlpServer::parameters>();
    for (auto& parameter : second.rpc_sync<&MlpServer::parameters>()) parameters.push_back(parameter);
    autograd::DistributedOptimizer<Sgd> optimizer(parameters, torch::optim::SGDOptions(kMlpLearningRate));
    const at::Tensor images = mlp_images();
    MlpCheck check;
    float got = 0;
    const auto step = [&](bool fast) {
      const autograd::Context context;
      const at::Tensor hidden = first.rpc_sync<&MlpServer::forward>(images);
      const at::Tensor loss = mlp_loss(second.rpc_sync<&MlpServer::forward>(hidden));
      autograd::backward(context, {loss}, options(fast));
      optimizer.step(context);
      got = loss.item<float>();
    };
    return run_training(task, {.run = step, .check = [&] { check.next(got); }, .has_modes = true});
  }

  Leaves leaves_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_autograd() { return std::make_unique<GradwireAutograd>(); }

}  // namespace gradwire::bench
