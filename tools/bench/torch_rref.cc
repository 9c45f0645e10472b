#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>

#include <stdexcept>

#include "tools/bench/measure.h"
#include "tools/bench/torch_agent.h"
#include "tools/bench/torch_member.h"

namespace gradwire::bench {
namespace {

namespace trpc = torch::distributed::rpc;

// What torch's Python front end does for rpc.remote() of an operator, to_here() and the end of the handle.
class TorchRref final : public Participant {
 public:
  std::string listen(const Place& place) override { return torch_.listen(place); }
  void join(const Place& place) override {
    add_ = TorchAgent::operation("aten::add", "Tensor");
    torch_.join(place);
  }

  Measurement run(const Task& task) override {
    if (task.case_name != "cycle") throw std::invalid_argument("no case " + task.case_name);
    at::Tensor x = at::empty({2}, at::kFloat);
    at::Tensor got;
    return measure(
        {.seconds = task.seconds}, [&](int64_t i) { x.fill_(static_cast<float>(i & 0xffff)); },
        [&](int64_t) {
          const auto sum = remote(0, {x, x, 1});
          got = sum->toHere().toTensor();
        },
        [&](int64_t i) {
          if (got.data_ptr<float>()[1] != 2 * static_cast<float>(i & 0xffff)) {
            throw std::runtime_error("wrong value behind an RRef");
          }
        });
  }

 private:
  c10::intrusive_ptr<trpc::UserRRef> remote(int to, std::vector<c10::IValue> arguments) const {
    trpc::RRefContext& context = trpc::RRefContext::getInstance();
    auto rref = context.createUserRRef(torch_.worker(to).id_, c10::TensorType::get());
    const trpc::ForkId fork = rref->forkId();
    auto message = trpc::ScriptRemoteCall(add_, std::move(arguments), rref->rrefId(), fork).toMessage();
    auto future = torch::distributed::autograd::sendMessageWithAutograd(torch_.agent(), torch_.worker(to),
                                                                        std::move(message));
    rref->registerOwnerCreationFuture(future);
    context.addPendingUser(fork, rref);
    future->addCallback(
        [fork](c10::ivalue::Future& created) { trpc::callback::confirmPendingUser(created, fork); });
    return rref;
  }

  TorchAgent torch_;
  std::shared_ptr<torch::jit::Operator> add_;
};

}  // namespace

std::unique_ptr<Participant> make_torch_rref() { return std::make_unique<TorchRref>(); }

}  // namespace gradwire::bench
