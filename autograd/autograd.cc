#include "gradwire/autograd/autograd.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/context/position.h"
#include "gradwire/autograd/pass/backward_apart.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/autograd/pass/parameter_owners.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/registry/registration.h"

namespace gradwire::autograd {
namespace {

absl::Status check_input(const at::Tensor& input) {
  if (input.defined() && input.requires_grad()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "invalid input of backward(): got a tensor that is undefined or does not require grad");
}

}  // namespace

// This call arrives before any message of the pass, so join() makes the pass, and the context if necessary.
// Runs on the owner of inputs: adds them to the pass with this header.
void take_inputs(const std::string& header, const std::vector<rpc::RRef<at::Tensor>>& references) {
  proto::Pass parsed;
  if (!parsed.ParseFromString(header))
    throw Error(absl::InvalidArgumentError("cannot parse the header of a backward pass"));
  const std::shared_ptr<rpc::Agent> agent = rpc::Agent::current();
  Engine& engine = *value_or_throw(Engine::of(*agent));
  const auto call = rpc::CallContext::current();
  const uint64_t root = value_or_throw(agent->services().find_worker(call->caller())).incarnation;
  const std::shared_ptr<Pass> pass =
      value_or_throw(engine.passes().join(parsed, root, call->deadline().on_system_clock()));
  std::vector<at::Tensor> inputs;
  for (const auto& reference : references) inputs.push_back(reference.local_value());
  for (const at::Tensor& input : inputs) throw_if_error(check_input(input));
  throw_if_error(pass->add_inputs(inputs));
}
GRADWIRE_RPC(take_inputs)

void backward_at_owner(const rpc::RRef<at::Tensor>& root, int64_t context, bool retain_graph) {
  backward(context, {root.local_value()}, {.retain_graph = retain_graph});
}
GRADWIRE_RPC(backward_at_owner)

namespace {

[[maybe_unused]] const bool linked = [] {
  rpc::set_rref_backward([](const rpc::RRef<at::Tensor>& root, int64_t context, bool retain_graph) {
    if (root.is_owner()) return backward_at_owner(root, context, retain_graph);
    // The call is not part of the context's forward.
    ActiveContextSlot::Scope no_context(nullptr);
    rpc::Agent::current()->rpc_sync<&backward_at_owner>(
        rpc::Destination(root.owner()).with_timeout(absl::InfiniteDuration()), root, context, retain_graph);
  });
  return true;
}();

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
                       ": a root that does not have exactly one element needs a grad_root"));
    }
    if (gradient.defined() && gradient.sizes() != root.sizes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape mismatch of grad_root ", i, " of backward(): got ", c10::str(gradient.sizes()),
                       ", expected ", c10::str(root.sizes()), ", the shape of its root"));
    }
  }
  for (const Input& input : options.inputs) {
    if (!input.reference()) GRADWIRE_RETURN_IF_ERROR(check_input(input.tensor()));
  }
  return absl::OkStatus();
}

// Makes the gradient of each root that has none. The device of a root may be lost or out of memory.
absl::StatusOr<std::vector<at::Tensor>> gradients_of_roots(const std::vector<at::Tensor>& roots,
                                                           const BackwardOptions& options,
                                                           const std::string& worker) try {
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const bool given = i < options.grad_roots.size() && options.grad_roots[i].defined();
    gradients.push_back(given ? options.grad_roots[i] : at::ones_like(roots[i].detach()));
    if (!options.create_graph) gradients.back() = gradients.back().detach();
  }
  return gradients;
} catch (...) {
  return with_worker(caught("making the gradient of a root"), worker);
}

// Sends the inputs that other workers own to their owners. Must be called before anything is marked.
void hold_inputs(rpc::Agent& agent, const ContextState& context, Pass& pass, const std::vector<Input>& inputs,
                 absl::Time deadline) {
  ParameterRefs references;
  for (const Input& input : inputs) {
    if (input.reference()) references.push_back(*input.reference());
  }
  const std::vector<ParameterOwner> owners = by_owner(absl::MakeConstSpan(&references, 1));
  // 1. Record the owners as reached by the context, so that they are notified of its end.
  // 2. Call all owners, outside of the context: these calls are not part of its forward.
  // 3. Wait for all. An input that arrived after the first mark would be refused.
  notify_of_end(agent, context.id, owners);
  ActiveContextSlot::Scope no_context(nullptr);
  std::vector<Future<void>> held;
  for (const ParameterOwner& owner : owners) {
    const absl::Duration left = deadline - Clock::system().now();
    held.push_back(agent.rpc_async<&take_inputs>(rpc::Destination(owner.worker).with_timeout(left),
                                                 pass.part().calls().header().SerializeAsString(),
                                                 owner.groups[0].parameters));
  }
  for (const Future<void>& each : held) each.wait();
}

// Runs a whole pass on the thread of the caller:
// 1. Check the roots, and make the gradient of each that has none.
// 2. Determine the deadline and the cancellation. If this thread serves a call, those of the call count too.
// 3. Make the pass.
// 4. Hold the inputs, here and on their owners.
// 5. Mark (the wave), run, and wait for the end. Any error aborts the pass on all workers that it has
//    reached.
// 6. Order the streams of the pass before the current streams of the caller.
// The common part of backward(), grad() and backward_apart(). The gradients of the tensors in `apart` are
// returned in `gradients_apart` and not stored in the context.
void run_pass(const ContextRef& context, const std::vector<at::Tensor>& roots, const BackwardOptions& options,
              const std::vector<at::Tensor>& apart = {}, Gradients* gradients_apart = nullptr) {
  const std::shared_ptr<rpc::Agent> agent = context.agent();
  rpc::AgentGuard guard(agent);
  Engine& engine = *value_or_throw(Engine::of(*agent));
  const std::shared_ptr<ContextState> state = live_context(*agent, context);
  throw_if_error(check_roots(roots, options));

  torch::autograd::edge_list edges;
  for (const at::Tensor& root : roots) edges.push_back(torch::autograd::impl::gradient_edge(root));
  torch::autograd::variable_list gradients =
      value_or_throw(gradients_of_roots(roots, options, agent->services().self().name));
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
    deadline = std::min(deadline, call->deadline().on_system_clock());
    token = call->cancellation();
  }
  proto::Pass header;
  // With inputs the wave is necessary: it finds the nodes that inputs depend on.
  header.set_fast(options.mode == BackwardMode::kFast && options.inputs.empty());
  header.set_retain_graph(options.retain_graph || options.create_graph);
  header.set_create_graph(options.create_graph);
  header.set_sum_as_they_arrive(options.sum_as_they_arrive);
  header.set_inputs_only(!options.inputs.empty());
  header.set_require_joined(options.require_joined);
  header.set_anomaly(torch::autograd::AnomalyMode::is_enabled());
  if (const auto& active = ActiveContextSlot::get();
      options.create_graph && active != nullptr && active->id == state->id) {
    write_position(*active, *header.mutable_position());
  }
  header.set_check_nan(header.anomaly() && torch::autograd::AnomalyMode::should_check_nan());
  const absl::Time began = Clock::system().now();
  const std::shared_ptr<Pass> pass = engine.passes().begin(state, std::move(header), deadline);
  // The callback holds the pass weakly: a token may live longer than the pass.
  const uint64_t handle = token.on_cancelled_inline([weak = std::weak_ptr<Pass>(pass), token] {
    if (auto alive = weak.lock()) alive->part().abort(token.reason());
  });
  std::vector<at::Tensor> inputs;
  for (const Input& input : options.inputs) {
    if (!input.reference()) inputs.push_back(input.tensor());
  }
  absl::Status status = pass->add_inputs(inputs);
  pass->gradients().keep_apart(apart);
  try {
    if (status.ok() && inputs.size() < options.inputs.size()) {
      hold_inputs(*agent, *state, *pass, options.inputs, deadline);
    }
  } catch (const Error& error) {
    status = error.status();
  }
  if (status.ok()) {
    pass->start(std::move(edges));
    status = pass->wait_for_wave(deadline);
  } else {
    pass->part().abort(status);
  }
  if (status.ok()) {
    pass->run_roots(std::move(gradients));
    status = pass->wait_for_end(deadline);
  }
  token.forget(handle);
  pass->part().release_graph();
  engine.pass_ended(status, Clock::system().now() - began);
  // The caller may use what the pass has changed, on its own streams, as after libtorch's backward.
  const absl::Status ordered = pass->part().order_before_current_streams();
  throw_if_error(status);
  throw_if_error(ordered);
  if (gradients_apart != nullptr) *gradients_apart = pass->gradients().take_apart();
}

}  // namespace

void backward(const ContextRef& context, const std::vector<at::Tensor>& roots,
              const BackwardOptions& options) {
  run_pass(context, roots, options);
}

std::vector<at::Tensor> grad(const ContextRef& context, const std::vector<at::Tensor>& roots,
                             const std::vector<at::Tensor>& inputs, const BackwardOptions& options) {
  if (!options.inputs.empty() || inputs.empty()) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("grad() got ", inputs.size(), " inputs as its argument and ", options.inputs.size(),
                     " in its options, expected at least one as its argument and none in its options")));
  }
  BackwardOptions with_inputs = options;
  with_inputs.inputs.assign(inputs.begin(), inputs.end());
  Gradients gradients;
  run_pass(context, roots, with_inputs, inputs, &gradients);
  return gradients.of(inputs);
}

std::vector<at::Tensor> backward_apart(const ContextRef& context, const std::vector<at::Tensor>& roots,
                                       const std::vector<at::Tensor>& grad_roots,
                                       const std::vector<at::Tensor>& leaves) {
  Gradients gradients;
  run_pass(context, roots, {.grad_roots = grad_roots}, leaves, &gradients);
  return gradients.of(leaves);
}

Gradients get_gradients(const ContextRef& context) {
  const std::shared_ptr<ContextState> state = live_context(*context.agent(), context);
  MutexLock lock(state->mutex);
  return state->gradients.hand_out();
}

}  // namespace gradwire::autograd
