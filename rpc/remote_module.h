#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/device/tensors_in.h"
#include "gradwire/rpc/call.h"
#include "gradwire/rpc/torch/remote_module_methods.h"

// Registers a torch::nn::Module implementation class for RemoteModule: at namespace scope, with the parameter
// types of the constructor to be used. Its forward must be one function, neither overloaded nor a template.
//   GRADWIRE_RPC_MODULE(NetImpl, int64_t, int64_t)
#define GRADWIRE_RPC_MODULE(type, ...)                \
  GRADWIRE_RPC_CLASS(type __VA_OPT__(, ) __VA_ARGS__) \
  GRADWIRE_RPC_METHOD(type, forward)                  \
  GRADWIRE_RPC_REGISTER_((::gradwire::rpc::module_internal::methods_entry<type>()))

namespace gradwire::rpc {
namespace module_internal {

template <class M>
std::vector<RRef<at::Tensor>> parameters_of(const RRef<M>& module) {
  std::vector<RRef<at::Tensor>> references;
  for (at::Tensor& parameter : list_parameters(module.local_value()))
    references.emplace_back(std::move(parameter));
  return references;
}
template <class M>
void train(const RRef<M>& module, bool on) {
  set_training(module.local_value(), on);
}
template <class M>
std::map<std::string, at::Tensor> state_of(const RRef<M>& module) {
  return read_state(module.local_value());
}
template <class M>
void load_state(const RRef<M>& module, const std::map<std::string, at::Tensor>& state) {
  write_state(module.local_value(), state);
}

template <class M>
void move_to(const RRef<M>& module, const std::string& device) {
  move_module(module.local_value(), device);
}

// forward() of a module on a device, with inputs that may be on others. `P`: the value types of its
// parameters.
template <class M, class P = typename FunctionTraits<decltype(&M::forward)>::Values>
struct ForwardOn;
template <class M, class... P>
struct ForwardOn<M, std::tuple<P...>> {
  static typename FunctionTraits<decltype(&M::forward)>::Returned call(const RRef<M>& module,
                                                                       const std::string& device,
                                                                       P... inputs) {
    const c10::Device to(device);
    return module.local_value().forward(device::on_device(std::move(inputs), to, /*non_blocking=*/true)...);
  }
};

// Whether the accelerator has no tensor among the inputs.
template <class... A>
bool all_on_cpu(const A&... inputs) {
  stream_fence_internal::Tensors found;
  (stream_fence_internal::collect(inputs, found), ...);
  return std::all_of(found.tensors.begin(), found.tensors.end(), [](const void* tensor) {
    const auto& each = *static_cast<const at::TensorBase*>(tensor);
    return !each.defined() || each.device().is_cpu();
  });
}

// Compilers spell template arguments in different ways, so the names on the wire are given explicitly.
template <class M>
const Callee* methods_entry() {
  using registration_internal::function_entry;
  const std::string& type = cpp_type_name<M>();
  function_entry<&train<M>>(absl::StrCat(type, "::train()"));
  function_entry<&state_of<M>>(absl::StrCat(type, "::state_dict()"));
  function_entry<&load_state<M>>(absl::StrCat(type, "::load_state_dict()"));
  function_entry<&move_to<M>>(absl::StrCat(type, "::to()"));
  function_entry<&ForwardOn<M>::call>(absl::StrCat(type, "::forward()"));
  return function_entry<&parameters_of<M>>(absl::StrCat(type, "::parameters()"));
}

}  // namespace module_internal

// A module that lives on another worker and is used as if it were local. Copyable: copies refer to the same
// module, which lives as long as one of the copies or an RRef to it. As thread-safe as the module's forward.
// All methods throw Error, as calls do.
//
//   RemoteModule<NetImpl> net("worker1/cpu", 64, 10);
//   at::Tensor y = net.forward(x);
template <class M>
class RemoteModule {
 public:
  // Makes the module with the constructor's `arguments`. `location` is "worker" (on its CPU) or
  // "worker/device", for example "worker1/cuda:0". With a device it returns when the module is there;
  // InvalidArgument if the worker has no such device.
  template <class... A, class C = DeclaredConstructor<M>>
  explicit RemoteModule(const std::string& location, A&&... arguments)
      : RemoteModule(module_internal::parse_location(location), std::type_identity<C>(),
                     std::forward<A>(arguments)...) {}
  // Refers to a module that exists already.
  explicit RemoteModule(RRef<M> module) : module_(std::move(module)) {}

  // Runs M::forward on the owner. Inputs are moved to the module's device. If all inputs are on the CPU, so
  // are the results; else the results travel by the device map. Throws Error, as rpc_sync does.
  template <class... A>
  auto forward(A&&... inputs) const {
    if (device_.is_cpu()) return module_.template rpc_sync<&M::forward>(std::forward<A>(inputs)...);
    return agent()->template rpc_sync<&module_internal::ForwardOn<M>::call>(
        destination(module_internal::all_on_cpu(inputs...)), module_, device_.str(),
        std::forward<A>(inputs)...);
  }
  // As forward without waiting. Returns a Future of the result of M::forward.
  template <class... A>
  auto forward_async(A&&... inputs) const {
    if (device_.is_cpu()) return module_.template rpc_async<&M::forward>(std::forward<A>(inputs)...);
    return agent()->template rpc_async<&module_internal::ForwardOn<M>::call>(
        destination(module_internal::all_on_cpu(inputs...)), module_, device_.str(),
        std::forward<A>(inputs)...);
  }

  // Returns references to the parameters, in the order of M::parameters().
  std::vector<RRef<at::Tensor>> remote_parameters() const {
    return call<&module_internal::parameters_of<M>>();
  }
  // Returns a reference to the module itself. Makes no call.
  RRef<M> get_module_rref() const { return module_; }

  // Sets training mode, as torch::nn::Module::train does.
  void train(bool on = true) const { call<&module_internal::train<M>>(on); }
  // Sets evaluation mode, as torch::nn::Module::eval does.
  void eval() const { train(false); }

  // Returns the parameters and buffers by name, detached and on the CPU. On the owner those of a module on
  // the CPU share its memory; others are copies.
  std::map<std::string, at::Tensor> state_dict() const { return call<&module_internal::state_of<M>>(); }
  // Copies `state` into the module's parameters and buffers. Throws InvalidArgument, which names the entries
  // that are missing, unknown or of another shape; then nothing is loaded.
  void load_state_dict(const std::map<std::string, at::Tensor>& state) const {
    call<&module_internal::load_state<M>>(state);
  }

 private:
  template <class C, class... A>
  RemoteModule(module_internal::Location location, std::type_identity<C>, A&&... arguments)
      : module_(call_internal::remote_constructed<M, C>(Agent::current(), location.worker,
                                                        std::forward<A>(arguments)...)),
        device_(std::move(location.device)) {
    if (!device_.is_cpu()) call<&module_internal::move_to<M>>(device_.str());
  }

  std::shared_ptr<Agent> agent() const { return rref_internal::agent_of(module_.handle().get()); }
  Destination destination(bool on_cpu) const {
    return module_internal::destination_for(module_.handle()->owner(), device_, on_cpu);
  }
  template <auto F, class... A>
  auto call(A&&... arguments) const {
    return agent()->template rpc_sync<F>(destination(/*on_cpu=*/true), module_,
                                         std::forward<A>(arguments)...);
  }

  RRef<M> module_;
  Device device_;
};

}  // namespace gradwire::rpc
