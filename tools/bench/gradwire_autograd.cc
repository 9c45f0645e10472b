#include <ATen/ops/empty.h>

#include <stdexcept>

#include "autograd/autograd.h"
#include "rpc/rpc.h"
#include "tools/bench/gradwire_member.h"
#include "tools/bench/measure.h"

namespace gradwire::bench {
namespace {

// A context, one remote add of two tensors that require gradients, its backward pass, and the context's end.
class GradwireAutograd final : public GradwireMember {
 public:
  Measurement run(const Task& task) override {
    if (task.case_name != "remote_add") throw std::invalid_argument("no case " + task.case_name);
    const rpc::WorkerInfo other = agent()->get_worker_info("w0");
    const rpc::Op op_add("aten::add");
    at::Tensor x = at::empty({2}, at::kFloat).fill_(1).requires_grad_();
    at::Tensor y = at::empty({2}, at::kFloat).fill_(2).requires_grad_();
    at::Tensor gradient;
    return measure(
        {.seconds = task.seconds}, [&](int64_t) { gradient = at::Tensor(); },
        [&](int64_t) {
          const autograd::Context context(agent());
          const at::Tensor loss = agent()->rpc_sync<at::Tensor>(other, op_add, x, y).sum();
          autograd::backward(context, {loss});
          gradient = autograd::get_gradients(context).at(y);
        },
        [&](int64_t) {
          if (gradient.numel() != 2 || gradient.select(0, 1).item<float>() != 1) {
            throw std::runtime_error("wrong gradient");
          }
        });
  }
};

}  // namespace

std::unique_ptr<Participant> make_gradwire_autograd() { return std::make_unique<GradwireAutograd>(); }

}  // namespace gradwire::bench
