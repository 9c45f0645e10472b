#include "gradwire/autograd/clip_grad.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/autograd/pass/parameter_owners.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/device/to_cpu.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/registration.h"

namespace gradwire::autograd {
namespace {

using Tensors = std::vector<at::Tensor>;

// The gradients of this worker's parameters in a context; undefined for a parameter without one.
class LocalGradients {
 public:
  LocalGradients(const rpc::Id& id, const ParameterRefs& parameters) {
    Engine& engine = *value_or_throw(Engine::of(*rpc::Agent::current()));
    // A context that has not reached this worker has no gradients here.
    if (auto found = engine.contexts().find(id); found.ok()) context_ = *found;
    for (const auto& reference : parameters) parameters_.push_back(reference.local_value());
  }

  Tensors get() const {
    Tensors gradients(parameters_.size());
    if (context_ == nullptr) return gradients;
    {
      MutexLock lock(context_->mutex);
      gradients = context_->gradients.hand_out(parameters_);
    }
    for (at::Tensor& gradient : gradients) {
      if (gradient.defined()) gradient = gradient.detach();
    }
    return gradients;
  }

  // The changed gradients are new tensors: a user may hold the old ones, and they may share memory with
  // others. They are computed without the lock.
  void replace(const std::function<at::Tensor(const at::Tensor&)>& change) {
    Tensors gradients = get();
    for (at::Tensor& gradient : gradients) {
      if (gradient.defined()) gradient = change(gradient);
    }
    if (context_ == nullptr) return;
    // The old gradients are moved out, and destroyed after the lock is released: they may own a graph, or
    // memory with a deleter of the user.
    MutexLock lock(context_->mutex);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!gradients[i].defined()) continue;
      gradients[i] = context_->gradients.replace(parameters_[i], std::move(gradients[i]));
    }
  }

 private:
  std::shared_ptr<ContextState> context_;
  Tensors parameters_;
};

// Computes the norm with the same operations as torch::nn::utils::clip_grad_norm_.
at::Tensor norm_of(const at::Tensor& gradient, double norm_type) {
  const at::Tensor values = gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
  return std::isinf(norm_type) && norm_type > 0 ? values.abs().max() : values.norm(norm_type);
}

bool on_one_device(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& each) { return each.device() == tensors[0].device(); });
}

// Returns the norm of the norms, which is the norm of all gradients together. at::stack() needs norms of one
// device and dtype. So norms of several devices are moved to the CPU, and all norms to the widest dtype. With
// norm_type 0 torch defines the result as the number of norms.
at::Tensor total_of(Tensors norms, double norm_type) {
  if (norm_type == 0) return at::full({}, static_cast<double>(norms.size()));
  if (norms.size() == 1) return norms[0];
  if (!on_one_device(norms)) norms = device::scalars_to_cpu(std::move(norms));
  at::ScalarType widest = norms[0].scalar_type();
  for (const at::Tensor& norm : norms) widest = c10::promoteTypes(widest, norm.scalar_type());
  for (at::Tensor& norm : norms) norm = norm.to(widest);
  const at::Tensor stacked = at::stack(norms);
  return std::isinf(norm_type) && norm_type > 0 ? at::max(stacked) : stacked.norm(norm_type);
}

struct Clipping {
  double norm;
  // The factor for all gradients; 1 if nothing has to be clipped.
  double factor;
};

// Returns the norm and the factor. Both are computed on the device of `total`, with the same operations as in
// one process. The host waits for the device once.
Clipping clipping_of(const at::Tensor& total, double max_norm) {
  // The summand is that of torch::nn::utils::clip_grad_norm_; it keeps a norm of 0 from dividing by 0.
  const at::Tensor factor = at::clamp(max_norm / (total + 1e-6), std::nullopt, 1.0);
  const Tensors both = device::scalars_to_cpu({total, factor});
  return {both[0].item().toDouble(), both[1].item().toDouble()};
}

void scale(LocalGradients& gradients, double factor) {
  if (factor == 1) return;
  gradients.replace([factor](const at::Tensor& gradient) { return gradient.mul(factor); });
}

Tensors norms_of(const Tensors& gradients, double norm_type) {
  Tensors norms;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) norms.push_back(norm_of(gradient, norm_type));
  }
  return norms;
}

void check_finite(double norm, double norm_type, bool error_if_nonfinite) {
  if (!error_if_nonfinite || std::isfinite(norm)) return;
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      "clip_grad_norm_: the norm of order ", norm_type, " of the gradients is ", norm,
      ", expected a finite number because of error_if_nonfinite; the gradients were not changed")));
}

// ---- Functions that owners run.

double clip_norm_here(uint64_t origin, uint64_t counter, const ParameterRefs& parameters, double max_norm,
                      double norm_type, bool error_if_nonfinite) {
  at::NoGradGuard no_graph;
  LocalGradients gradients({origin, counter}, parameters);
  Tensors norms = norms_of(gradients.get(), norm_type);
  if (norms.empty()) return 0;
  const at::Tensor total = total_of(std::move(norms), norm_type);
  const auto [norm, factor] = clipping_of(total, max_norm);
  check_finite(norm, norm_type, error_if_nonfinite);
  scale(gradients, factor);
  return norm;
}

// Returns the norm of each gradient, on the CPU; undefined for a parameter without a gradient.
Tensors gradient_norms(uint64_t origin, uint64_t counter, const ParameterRefs& parameters, double norm_type) {
  at::NoGradGuard no_graph;
  Tensors norms = LocalGradients({origin, counter}, parameters).get();
  for (at::Tensor& norm : norms) {
    if (norm.defined()) norm = norm_of(norm, norm_type);
  }
  return device::scalars_to_cpu(std::move(norms));
}

void scale_gradients(uint64_t origin, uint64_t counter, const ParameterRefs& parameters, double factor) {
  at::NoGradGuard no_graph;
  LocalGradients gradients({origin, counter}, parameters);
  scale(gradients, factor);
}

void clamp_gradients(uint64_t origin, uint64_t counter, const ParameterRefs& parameters, double limit) {
  at::NoGradGuard no_graph;
  LocalGradients({origin, counter}, parameters).replace([limit](const at::Tensor& gradient) {
    if (!gradient.is_sparse()) return at::clamp(gradient, -limit, limit);
    const at::Tensor whole = gradient.coalesce();
    return at::_sparse_coo_tensor_unsafe(whole._indices(), at::clamp(whole._values(), -limit, limit),
                                         whole.sizes())
        ._coalesced_(true);
  });
}

void check_limit(double limit, const char* function, const char* name) {
  if (limit >= 0) return;
  throw Error(
      absl::InvalidArgumentError(absl::StrCat(function, ": ", name, " must be 0 or more, got ", limit)));
}

}  // namespace

GRADWIRE_RPC_AS("gradwire::autograd::clip_norm_here", &clip_norm_here)
GRADWIRE_RPC_AS("gradwire::autograd::gradient_norms", &gradient_norms)
GRADWIRE_RPC_AS("gradwire::autograd::scale_gradients", &scale_gradients)
GRADWIRE_RPC_AS("gradwire::autograd::clamp_gradients", &clamp_gradients)

// 1. One owner: it does everything in one call.
// 2. Several owners: gather the norm of each gradient, not the gradients.
// 3. Compute the norm of all and the factor here, then let the owners scale, if anything has to be clipped.
// If an owner fails in the last step, the others have scaled their gradients already; the error says so.
double clip_grad_norm_(const ContextRef& context, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                       double max_norm, double norm_type, bool error_if_nonfinite) {
  constexpr char kWhat[] = "clip_grad_norm_";
  check_limit(max_norm, kWhat, "max_norm");
  const std::shared_ptr<rpc::Agent> agent = context.agent();
  const rpc::Id id = live_context(*agent, context)->id;
  const std::vector<ParameterOwner> owners = by_owner(absl::MakeConstSpan(&parameters, 1));
  // The calls are not part of the context's forward.
  ActiveContextSlot::Scope no_context(nullptr);
  at::NoGradGuard no_graph;
  if (owners.empty()) return 0;
  if (owners.size() == 1) {
    return wait_for_owners<double>(
        kWhat, owners,
        {agent->rpc_async<&clip_norm_here>(owners[0].worker, id.origin, id.counter,
                                           owners[0].groups[0].parameters, max_norm, norm_type,
                                           error_if_nonfinite)})[0];
  }
  std::vector<Future<Tensors>> calls;
  for (const ParameterOwner& owner : owners) {
    calls.push_back(agent->rpc_async<&gradient_norms>(owner.worker, id.origin, id.counter,
                                                      owner.groups[0].parameters, norm_type));
  }
  const std::vector<Tensors> answers = wait_for_owners(kWhat, owners, calls);
  // The norms are put into the order of the parameters, so that the sum has the same bits as in one process.
  Tensors by_parameter(parameters.size());
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const std::vector<std::size_t>& positions = owners[i].groups[0].positions;
    for (std::size_t k = 0; k < positions.size(); ++k) {
      by_parameter[positions[k]] = part_of(answers[i], k, kWhat, owners[i]);
    }
  }
  Tensors norms;
  for (at::Tensor& norm : by_parameter) {
    if (norm.defined()) norms.push_back(std::move(norm));
  }
  if (norms.empty()) return 0;
  const at::Tensor total = total_of(std::move(norms), norm_type);
  const Clipping clipping = clipping_of(total, max_norm);
  const double norm = clipping.norm;
  check_finite(norm, norm_type, error_if_nonfinite);
  if (clipping.factor == 1) return norm;
  std::vector<Future<void>> scalings;
  for (const ParameterOwner& owner : owners) {
    scalings.push_back(agent->rpc_async<&scale_gradients>(owner.worker, id.origin, id.counter,
                                                          owner.groups[0].parameters, clipping.factor));
  }
  wait_for_owners(kWhat, owners, scalings);
  return norm;
}

void clip_grad_value_(const ContextRef& context, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                      double clip_value) {
  constexpr char kWhat[] = "clip_grad_value_";
  check_limit(clip_value, kWhat, "clip_value");
  const std::shared_ptr<rpc::Agent> agent = context.agent();
  const rpc::Id id = live_context(*agent, context)->id;
  const std::vector<ParameterOwner> owners = by_owner(absl::MakeConstSpan(&parameters, 1));
  ActiveContextSlot::Scope no_context(nullptr);
  std::vector<Future<void>> calls;
  for (const ParameterOwner& owner : owners) {
    calls.push_back(agent->rpc_async<&clamp_gradients>(owner.worker, id.origin, id.counter,
                                                       owner.groups[0].parameters, clip_value));
  }
  wait_for_owners(kWhat, owners, calls);
}

}  // namespace gradwire::autograd
