#include "autograd/autograd.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "autograd/engine.h"
#include "base/clock.h"
#include "base/error.h"
#include "rpc/agent.h"
#include "rpc/call_context.h"

namespace gradwire::autograd {
namespace {

absl::StatusOr<std::shared_ptr<ContextState>> find_context(Engine& engine, const ContextRef& context) {
  if (context.number().has_value()) return engine.contexts().find(*context.number());
  return engine.contexts().find(context.id());
}

absl::Status check_roots(const std::vector<at::Tensor>& roots, const BackwardOptions& options) {
  if (roots.empty()) return absl::InvalidArgumentError("backward() needs at least one root");
  if (!options.grad_roots.empty() && options.grad_roots.size() != roots.size()) {
    return absl::InvalidArgumentError(absl::StrCat("backward() got ", options.grad_roots.size(),
                                                   " grad_roots for ", roots.size(), " roots"));
  }
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const at::Tensor& root = roots[i];
    if (!root.defined())
      return absl::InvalidArgumentError(absl::StrCat("root ", i, " of backward() is undefined"));
    if (!root.requires_grad()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "root ", i, " of backward(), of shape ", c10::str(root.sizes()),
          ", does not require grad: nothing that it was computed from does, or it was computed in no_grad "
          "mode, or received outside the context"));
    }
    const at::Tensor gradient = options.grad_roots.empty() ? at::Tensor() : options.grad_roots[i];
    if (!gradient.defined() && root.numel() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("root ", i, " of backward() has the shape ", c10::str(root.sizes()),
                       ": one with more or less than one element needs its grad_root"));
    }
    if (gradient.defined() && gradient.sizes() != root.sizes()) {
      return absl::InvalidArgumentError(absl::StrCat("grad_root ", i, " has the shape ",
                                                     c10::str(gradient.sizes()), ", its root ",
                                                     c10::str(root.sizes())));
    }
  }
  for (const at::Tensor& input : options.inputs) {
    if (!input.defined() || !input.requires_grad()) {
      return absl::InvalidArgumentError("an input of backward() is undefined or does not require grad");
    }
  }
  return absl::OkStatus();
}

// Waits for `future`; aborts the pass when the time is up or the call that this thread serves is cancelled.
absl::Status wait_for(const Future<void>& future, Pass& pass, absl::Time deadline) {
  const absl::Duration left = deadline - Clock::system().now();
  if (!future.wait_for(left)) {
    pass.abort(absl::DeadlineExceededError(absl::StrCat(
        "the backward pass of the autograd context ", rpc::to_string(pass.context()),
        " did not end in time: in the fast mode a tensor that was sent and not used in the loss keeps it "
        "waiting; otherwise a worker is slow")));
  }
  return future.result();
}

}  // namespace

void backward(const ContextRef& context, const std::vector<at::Tensor>& roots,
              const BackwardOptions& options) {
  const std::shared_ptr<rpc::Agent> agent = context.agent();
  Engine& engine = *value_or_throw(Engine::of(*agent));
  const std::shared_ptr<ContextState> state = value_or_throw(find_context(engine, context));
  throw_if_error(check_roots(roots, options));

  torch::autograd::edge_list edges;
  torch::autograd::variable_list gradients;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    edges.push_back(torch::autograd::impl::gradient_edge(roots[i]));
    const bool given = i < options.grad_roots.size() && options.grad_roots[i].defined();
    gradients.push_back(given ? options.grad_roots[i].detach() : at::ones_like(roots[i].detach()));
  }
  try {
    torch::autograd::validate_outputs(edges, gradients, [](const std::string& message) {
      return absl::StrCat("the gradient of a root is invalid: ", message);
    });
  } catch (...) {
    throw Error(absl::InvalidArgumentError(status_from_exception(std::current_exception()).message()));
  }

  absl::Time deadline = options.timeout == absl::InfiniteDuration() ? absl::InfiniteFuture()
                                                                    : Clock::system().now() + options.timeout;
  CancellationToken token;
  if (auto call = rpc::CallContext::current()) {
    deadline = std::min(deadline, call->deadline());
    token = call->cancellation();
  }
  proto::Pass header;
  header.set_fast(options.mode == Mode::kFast);
  header.set_retain_graph(options.retain_graph);
  header.set_sum_in_edge_order(options.sum_in_edge_order);
  header.set_inputs_only(!options.inputs.empty());
  const std::shared_ptr<Pass> pass = engine.begin_pass(state, std::move(header), deadline);
  const uint64_t handle = token.on_cancelled([weak = std::weak_ptr<Pass>(pass), token] {
    if (auto alive = weak.lock()) alive->abort(token.reason());
  });

  pass->start(std::move(edges), options.inputs);
  absl::Status status = wait_for(pass->wave_over(), *pass, deadline);
  if (status.ok()) {
    pass->run_roots(std::move(gradients));
    status = wait_for(pass->completion(), *pass, deadline);
  }
  token.forget(handle);
  throw_if_error(status);
}

Gradients get_gradients(const ContextRef& context) {
  const std::shared_ptr<rpc::Agent> agent = context.agent();
  Engine& engine = *value_or_throw(Engine::of(*agent));
  const std::shared_ptr<ContextState> state = value_or_throw(find_context(engine, context));
  MutexLock lock(state->mutex);
  return state->gradients;
}

}  // namespace gradwire::autograd
