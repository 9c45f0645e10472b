#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <stdexcept>

#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/systems/torch_agent.h"
#include "gradwire/tools/bench/systems/torch_member.h"

namespace gradwire::bench {
namespace {

namespace trpc = torch::distributed::rpc;

// Registers an operator with a reference as argument. libtorch has no such operator, and the registration of
// c10 does not support this type, so this uses the registration of torch::jit.
const torch::jit::RegisterOperators fetch_operator({torch::jit::Operator(
    "aten::gradwire_bench_fetch(RRef(Tensor) shared) -> Tensor",
    [](torch::jit::Stack& stack) {
      const auto shared = torch::jit::pop(stack).toRRef();
      const auto user = c10::dynamic_intrusive_pointer_cast<trpc::UserRRef>(shared);
      if (!user) throw std::runtime_error("gradwire_bench_fetch was called at the owner of the reference");
      torch::jit::push(stack, user->toHere());
    },
    c10::AliasAnalysisKind::FROM_SCHEMA)});

// Performs the steps of torch's Python front end for rpc.remote() of an operator, for to_here(), and for the
// release of the handle.
class TorchRref final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override { return torch_.listen(endpoint); }
  void join(const Endpoint& endpoint) override {
    add_ = TorchAgent::operation("aten::add", "Tensor");
    fetch_ = TorchAgent::operation("aten::gradwire_bench_fetch");
    torch_.join(endpoint);
  }

  Measurement run(const Task& task) override {
    if (task.case_name == "cycle") return cycle(task);
    if (task.case_name == "share") return share(task);
    throw std::invalid_argument("unknown case " + task.case_name);
  }

 private:
  Measurement cycle(const Task& task) const {
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

  Measurement share(const Task& task) const {
    const at::Tensor x = at::empty({2}, at::kFloat).fill_(3);
    const auto shared = remote(0, {x, x, 1});
    // After the first answer the owner knows the reference.
    (void)shared->toHere();
    at::Tensor got;
    return measure(
        {.seconds = task.seconds}, [&](int64_t) { got = at::Tensor(); },
        [&](int64_t) {
          const c10::IValue argument(c10::static_intrusive_pointer_cast<c10::RRefInterface>(shared));
          got = TorchAgent::result(*torch_.call(1, fetch_, {argument})).toTensor();
        },
        [&](int64_t) {
          if (got.data_ptr<float>()[1] != 6) throw std::runtime_error("wrong value behind a shared RRef");
        });
  }

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
  std::shared_ptr<torch::jit::Operator> add_, fetch_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_torch_rref() { return std::make_unique<TorchRref>(); }

}  // namespace gradwire::bench
