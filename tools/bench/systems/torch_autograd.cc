#include <ATen/Parallel.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/script_call.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "gradwire/tools/bench/suites/case_name.h"
#include "gradwire/tools/bench/suites/mlp.h"
#include "gradwire/tools/bench/suites/training.h"
#include "gradwire/tools/bench/systems/torch_agent.h"
#include "gradwire/tools/bench/systems/torch_autograd_ops.h"
#include "gradwire/tools/bench/systems/torch_member.h"

namespace gradwire::bench {
namespace {

namespace tautograd = torch::distributed::autograd;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
using ContextPtr = tautograd::ContextPtr;

// Performs the steps of torch's Python front end for `with dist_autograd.context()`, for calls inside it, and
// for backward(). torch has only the fast mode.
class TorchAutograd final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override { return torch_.listen(endpoint); }
  void join(const Endpoint& endpoint) override {
    at::set_num_threads(1);
    endpoint_ = endpoint;
    add_ = TorchAgent::operation("aten::add", "Tensor");
    add_along_ = TorchAgent::operation("aten::gradwire_bench_add_along");
    make_layer_ = TorchAgent::operation("aten::gradwire_bench_make_layer");
    layer_ = TorchAgent::operation("aten::gradwire_bench_layer");
    sgd_step_ = TorchAgent::operation("aten::gradwire_bench_sgd_step");
    torch_.join(endpoint);
  }

  Measurement run(const Task& task) override {
    const std::string operation = parse_case(task.case_name).operation;
    if (operation == "remote_add") return remote_add(task);
    if (operation == "chain") return chain(task);
    if (operation == "fanout") return fanout(task);
    if (operation == "mlp") return mlp(task);
    throw std::invalid_argument("unknown case " + task.case_name);
  }

 private:
  int workers() const { return endpoint_.size - 1; }

  // Calls aten::add as torch calls a built-in operator: the call is recorded if an argument requires grad.
  FuturePtr add(int to) const {
    auto message = torch::distributed::rpc::ScriptCall(add_, {leaves_.x(), leaves_.y(), 1}).toMessage();
    return tautograd::sendMessageWithAutograd(torch_.agent(), torch_.worker(to), std::move(message));
  }
  static void backward(const ContextPtr& context, const at::Tensor& loss) {
    tautograd::DistEngine::getInstance().execute(context->contextId(), {loss}, /*retainGraph=*/false);
  }
  // Opens a context, runs forward(), and runs the backward pass of the sum of its result. Returns the
  // gradient of y.
  template <class Forward>
  at::Tensor gradient_of(Forward forward) const {
    tautograd::DistAutogradContainer& container = tautograd::DistAutogradContainer::getInstance();
    const ContextPtr context = container.newContext();
    const at::Tensor loss = forward().sum();
    backward(context, loss);
    at::Tensor gradient = context->getGradients().at(leaves_.y());
    container.releaseContext(context->contextId());
    return gradient;
  }

  Measurement remote_add(const Task& task) const {
    at::Tensor gradient;
    return run_training(
        task,
        {.run = [&](bool) { gradient = gradient_of([&] { return TorchAgent::result(*add(0)).toTensor(); }); },
         .check = [&] { check_gradient(std::exchange(gradient, at::Tensor()), 1); },
         .local = [&] { leaves_.add_up_locally(1); }});
  }

  Measurement chain(const Task& task) const {
    at::Tensor gradient;
    const auto forward = [&] {
      const auto answer = call_in_context(torch_.agent(), torch_.worker(0), add_along_,
                                          {leaves_.x(), leaves_.y(), int64_t{workers()}});
      return TorchAgent::result(*answer).toTensor();
    };
    const auto want = static_cast<float>(workers());
    return run_training(task, {.run = [&](bool) { gradient = gradient_of(forward); },
                               .check = [&] { check_gradient(std::exchange(gradient, at::Tensor()), want); },
                               .local = [&] { leaves_.add_up_locally(workers()); },
                               .hops = workers()});
  }

  Measurement fanout(const Task& task) const {
    at::Tensor gradient;
    const auto forward = [&] {
      std::vector<FuturePtr> sums;
      for (int i = 0; i < workers(); ++i) sums.push_back(add(i));
      at::Tensor total = TorchAgent::result(*sums[0]).toTensor();
      for (std::size_t i = 1; i < sums.size(); ++i)
        total = total.add(TorchAgent::result(*sums[i]).toTensor());
      return total;
    };
    const auto want = static_cast<float>(workers());
    return run_training(task, {.run = [&](bool) { gradient = gradient_of(forward); },
                               .check = [&] { check_gradient(std::exchange(gradient, at::Tensor()), want); },
                               .local = [&] { leaves_.fan_out_locally(workers()); },
                               .hops = workers()});
  }

  Measurement mlp(const Task& task) const {
    for (int i = 0; i < 2; ++i) TorchAgent::result(*torch_.call(i, make_layer_, {int64_t{i}}));
    const at::Tensor images = mlp_images();
    MlpCheck check;
    float got = 0;
    const auto forward = [&](int worker, const at::Tensor& x) {
      return TorchAgent::result(*call_in_context(torch_.agent(), torch_.worker(worker), layer_, {x}))
          .toTensor();
    };
    const auto step = [&](bool) {
      tautograd::DistAutogradContainer& container = tautograd::DistAutogradContainer::getInstance();
      const ContextPtr context = container.newContext();
      const at::Tensor loss = mlp_loss(forward(1, forward(0, images)));
      backward(context, loss);
      const FuturePtr first = torch_.call(0, sgd_step_, {context->contextId()});
      const FuturePtr second = torch_.call(1, sgd_step_, {context->contextId()});
      TorchAgent::result(*first);
      TorchAgent::result(*second);
      got = loss.item<float>();
      container.releaseContext(context->contextId());
    };
    return run_training(task, {.run = step, .check = [&] { check.next(got); }});
  }

  Endpoint endpoint_;
  TorchAgent torch_;
  std::shared_ptr<torch::jit::Operator> add_, add_along_, make_layer_, layer_, sgd_step_;
  Leaves leaves_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_torch_autograd() { return std::make_unique<TorchAutograd>(); }

}  // namespace gradwire::bench
