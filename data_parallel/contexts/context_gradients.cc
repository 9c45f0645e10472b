// Registers a GradientSink for replicated parameters. It reads and writes the gradients of the autograd
// context whose backward pass runs on the calling thread.

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/data_parallel/reducer/gradient_sink.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"

namespace gradwire::autograd {
namespace {

class ContextGradients : public data_parallel::GradientSink {
 public:
  explicit ContextGradients(std::shared_ptr<ContextState> context) : context_(std::move(context)) {}

  Tensors get(const Tensors& leaves) override {
    MutexLock lock(context_->mutex);
    return context_->gradients.hand_out(leaves);
  }

  void set(const Tensors& leaves, Tensors gradients) override {
    MutexLock lock(context_->mutex);
    // The old tensors move into `gradients`, which is destroyed after the lock has been released.
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      gradients[i] = context_->gradients.replace(leaves[i], std::move(gradients[i]));
    }
  }

 private:
  const std::shared_ptr<ContextState> context_;
};

std::unique_ptr<data_parallel::GradientSink> find_context() {
  const std::shared_ptr<const ActiveContext> active = current_context();
  if (active == nullptr) return nullptr;
  // The context is known by its id only, and several agents of one process may have it. Each has its own
  // gradients.
  const std::shared_ptr<rpc::Agent> agent = rpc::Agent::current();
  if (agent == nullptr || agent->services().self().incarnation != active->self) {
    throw Error(absl::FailedPreconditionError(
        absl::StrCat("the autograd context ", rpc::to_string(active->id),
                     " belongs to another agent than this thread's current agent; set it with AgentGuard")));
  }
  Engine& engine = *value_or_throw(Engine::of(*agent));
  return std::make_unique<ContextGradients>(value_or_throw(engine.contexts().find(active->id)));
}

[[maybe_unused]] const bool registered = [] {
  data_parallel::set_gradient_sink_finder(&find_context);
  return true;
}();

}  // namespace
}  // namespace gradwire::autograd
