#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/script_call.h>

#include <stdexcept>

#include "tools/bench/measure.h"
#include "tools/bench/torch_agent.h"
#include "tools/bench/torch_member.h"

namespace gradwire::bench {
namespace {

namespace tautograd = torch::distributed::autograd;

// What torch's Python front end does for `with dist_autograd.context()`, one rpc_sync and backward().
class TorchAutograd final : public Participant {
 public:
  std::string listen(const Place& place) override { return torch_.listen(place); }
  void join(const Place& place) override {
    add_ = TorchAgent::operation("aten::add", "Tensor");
    torch_.join(place);
  }

  Measurement run(const Task& task) override {
    if (task.case_name != "remote_add") throw std::invalid_argument("no case " + task.case_name);
    at::Tensor x = at::empty({2}, at::kFloat).fill_(1).requires_grad_();
    at::Tensor y = at::empty({2}, at::kFloat).fill_(2).requires_grad_();
    at::Tensor gradient;
    tautograd::DistAutogradContainer& container = tautograd::DistAutogradContainer::getInstance();
    return measure(
        {.seconds = task.seconds}, [&](int64_t) { gradient = at::Tensor(); },
        [&](int64_t) {
          const auto context = container.newContext();
          auto message = torch::distributed::rpc::ScriptCall(add_, {x, y, 1}).toMessage();
          const auto future =
              tautograd::sendMessageWithAutograd(torch_.agent(), torch_.worker(0), std::move(message));
          const at::Tensor loss = TorchAgent::result(*future).toTensor().sum();
          tautograd::DistEngine::getInstance().execute(context->contextId(), {loss}, false);
          gradient = context->getGradients().at(y);
          container.releaseContext(context->contextId());
        },
        [&](int64_t) {
          if (gradient.numel() != 2 || gradient.select(0, 1).item<float>() != 1) {
            throw std::runtime_error("wrong gradient");
          }
        });
  }

 private:
  TorchAgent torch_;
  std::shared_ptr<torch::jit::Operator> add_;
};

}  // namespace

std::unique_ptr<Participant> make_torch_autograd() { return std::make_unique<TorchAutograd>(); }

}  // namespace gradwire::bench
