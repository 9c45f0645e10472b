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
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/modules/remote_module_methods.h"

// Registers a torch::nn::Module implementation class for RemoteModule: at namespace scope, with the parameter
// types of the constructor to be used. Its forward must be one function, neither overloaded nor a template.
// The class may have inherited it.
//   GRADWIRE_RPC_MODULE(NetImpl, int64_t, int64_t)
#define GRADWIRE_RPC_MODULE(type, ...)                \
  GRADWIRE_RPC_CLASS(type __VA_OPT__(, ) __VA_ARGS__) \
  GRADWIRE_RPC_METHOD(type, forward)                  \
  GRADWIRE_RPC_REGISTER_((::gradwire::rpc::module_internal::methods_entry<type>()))

namespace torch::nn {
class SequentialImpl;
}

namespace gradwire::rpc {

// The values of the last parameters of M::forward for calls of RemoteModule that leave them out, as a tuple.
// Specialise it if forward has default arguments, because a pointer to a method does not know them:
//   template <>
//   struct gradwire::rpc::ForwardDefaults<NetImpl> {
//     static auto values() { return std::make_tuple(at::Tensor(), true); }
//   };
template <class M>
struct ForwardDefaults {
  // No parameter has a default.
  static std::tuple<> values() { return {}; }
};

namespace module_internal {

// Passes the inputs, and the defaults of those that they leave out, to `call`.
template <class M, class Call, class... A>
auto with_defaults(const Call& call, A&&... inputs) {
  constexpr std::size_t kParameters = FunctionTraits<decltype(&M::forward)>::kArity;
  if constexpr (sizeof...(A) >= kParameters) {
    return call(std::forward<A>(inputs)...);
  } else {
    auto defaults = ForwardDefaults<M>::values();
    constexpr std::size_t kMissing = kParameters - sizeof...(A);
    constexpr std::size_t kDefaults = std::tuple_size_v<decltype(defaults)>;
    static_assert(kMissing <= kDefaults,
                  "forward has more parameters than the call has inputs; if they have defaults, specialise "
                  "gradwire::rpc::ForwardDefaults for the module");
    if constexpr (kMissing <= kDefaults) {
      return [&]<std::size_t... I>(std::index_sequence<I...>) {
        return call(std::forward<A>(inputs)..., std::get<kDefaults - kMissing + I>(std::move(defaults))...);
      }
      (std::make_index_sequence<kMissing>());
    }
  }
}

// forward() of a module on a device, with inputs that may be on others. `P`: the value types of its
// parameters.
template <class M, class P = typename FunctionTraits<decltype(&M::forward)>::Values>
struct ForwardOn;
template <class M, class... P>
struct ForwardOn<M, std::tuple<P...>> {
  static typename FunctionTraits<decltype(&M::forward)>::Returned call(const ModuleReference& module,
                                                                       const std::string& device,
                                                                       P... inputs) {
    const c10::Device to(device);
    return module.template local_value_as<M>().forward(
        device::on_device(std::move(inputs), to, /*non_blocking=*/true)...);
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

// The callees for the module class M.
template <class M>
inline ModuleCallees callees_of_module;

template <class M>
const Callee* methods_entry() {
  using Forward = FunctionTraits<decltype(&ForwardOn<M>::call)>;
  callees_of_module<M> = register_module(cpp_type_name<M>(), Codec<RRef<M>>::type_name(),
                                         Forward::signature(), &serve_internal::serve<&ForwardOn<M>::call>);
  return callees_of_module<M>.forward;
}

}  // namespace module_internal

// A module that lives on another worker and is used as if it were local. Copyable: copies refer to the same
// module, which lives as long as one of the copies or an RRef to it. It can be sent as an argument or a
// result, at any depth. As thread-safe as the module's forward. All methods throw Error, as calls do.
//
//   RemoteModule<NetImpl> net("worker1/cpu", 64, 10);
//   at::Tensor y = net.forward(x);
template <class M>
class RemoteModule {
  static_assert(!std::is_same_v<M, torch::nn::SequentialImpl>,
                "the forward of torch::nn::SequentialImpl is a template: use gradwire::rpc::SequentialImpl "
                "(rpc/sequential.h)");

 public:
  // Makes the module with the constructor's `arguments`. `location` is "worker" (on its CPU) or
  // "worker/device", for example "worker1/cuda:0". In place of a name the worker may be "rank:1". With a
  // device it returns when the module is there; InvalidArgument if the worker has no such device.
  template <class... A, class C = DeclaredConstructor<M>>
  explicit RemoteModule(const std::string& location, A&&... arguments)
      : RemoteModule(module_internal::parse_location(location), std::type_identity<C>(),
                     std::forward<A>(arguments)...) {}
  // Refers to a module that exists already, on the CPU of its owner or on `device`.
  explicit RemoteModule(RRef<M> module, Device device = Device())
      : module_(std::move(module)), device_(std::move(device)) {}

  // Runs M::forward on the owner. Inputs are moved to the module's device. If all inputs are on the CPU, so
  // are the results; else the results travel by the device map. Inputs at the end that have a default
  // (ForwardDefaults) may be left out. Throws Error, as rpc_sync does.
  template <class... A>
  auto forward(A&&... inputs) const {
    return module_internal::with_defaults<M>(
        [this]<class... B>(B&&... all) {
          if (device_.is_cpu()) return module_.template rpc_sync<&M::forward>(std::forward<B>(all)...);
          return agent()->template rpc_sync<Result>(destination(module_internal::all_on_cpu(all...)),
                                                    on_device(), reference(), device_.str(),
                                                    std::forward<B>(all)...);
        },
        std::forward<A>(inputs)...);
  }
  // As forward without waiting. Returns a Future of the result of M::forward.
  template <class... A>
  auto forward_async(A&&... inputs) const {
    return module_internal::with_defaults<M>(
        [this]<class... B>(B&&... all) {
          if (device_.is_cpu()) return module_.template rpc_async<&M::forward>(std::forward<B>(all)...);
          return agent()->template rpc_async<Result>(destination(module_internal::all_on_cpu(all...)),
                                                     on_device(), reference(), device_.str(),
                                                     std::forward<B>(all)...);
        },
        std::forward<A>(inputs)...);
  }
  // As forward, but the result stays on the owner. Returns an RRef to it at once.
  template <class... A>
  auto forward_remote(A&&... inputs) const {
    return module_internal::with_defaults<M>(
        [this]<class... B>(B&&... all) {
          if (device_.is_cpu()) return module_.template remote<&M::forward>(std::forward<B>(all)...);
          return agent()->template remote<ValueOf<Result>>(destination(module_internal::all_on_cpu(all...)),
                                                           on_device(), reference(), device_.str(),
                                                           std::forward<B>(all)...);
        },
        std::forward<A>(inputs)...);
  }

  // Returns references to the parameters, in the order of M::parameters(). `recurse`: also those of the
  // modules in it.
  std::vector<RRef<at::Tensor>> remote_parameters(bool recurse = true) const {
    return call<&module_internal::parameters_of>(callees().parameters, recurse);
  }
  // Returns a reference to the module itself. Makes no call.
  const RRef<M>& get_module_rref() const { return module_; }
  // The device of the module on its worker. Makes no call.
  const Device& device() const { return device_; }

  // Sets training mode, as torch::nn::Module::train does.
  void train(bool on = true) const { call<&module_internal::train>(callees().train, on); }
  // Sets evaluation mode, as torch::nn::Module::eval does.
  void eval() const { train(false); }

  // Returns the parameters and buffers by name, detached and on the CPU. On the owner those of a module on
  // the CPU share its memory; others are copies.
  std::map<std::string, at::Tensor> state_dict() const {
    return call<&module_internal::state_of>(callees().state);
  }
  // Copies `state` into the module's parameters and buffers. Throws InvalidArgument, which names the entries
  // that are missing, unknown or of another shape; then nothing is loaded.
  void load_state_dict(const std::map<std::string, at::Tensor>& state) const {
    call<&module_internal::load_state>(callees().load_state, state);
  }

 private:
  using Result = typename FunctionTraits<decltype(&M::forward)>::Result;

  template <class C, class... A>
  RemoteModule(module_internal::Location location, std::type_identity<C>, A&&... arguments)
      : module_(call_internal::remote_constructed<M, C>(Agent::current(), location.worker,
                                                        std::forward<A>(arguments)...)),
        device_(std::move(location.device)) {
    if (!device_.is_cpu()) call<&module_internal::move_to>(callees().move_to, device_.str());
  }

  std::shared_ptr<Agent> agent() const { return rref_internal::agent_of(module_.handle().get()); }
  Destination destination(bool on_cpu) const {
    return module_internal::destination_for(module_.handle()->owner(), device_, on_cpu);
  }
  module_internal::ModuleReference reference() const {
    return module_internal::ModuleReference(module_.handle());
  }
  static const module_internal::ModuleCallees& callees() { return module_internal::callees_of_module<M>; }
  static auto on_device() {
    return module_internal::ModuleCall<&module_internal::ForwardOn<M>::call>{callees().forward,
                                                                             cpp_type_name<M>()};
  }
  template <auto F, class... A>
  auto call(const Callee* callee, A&&... arguments) const {
    return agent()->template rpc_sync<typename FunctionTraits<decltype(F)>::Result>(
        destination(/*on_cpu=*/true), module_internal::ModuleCall<F>{callee, cpp_type_name<M>()}, reference(),
        std::forward<A>(arguments)...);
  }

  RRef<M> module_;
  Device device_;
};

// Sends a remote module as a reference to it. The receiver becomes one more user of the module.
template <class M>
struct Codec<RemoteModule<M>> {
  // "RemoteModule[M]", as in signatures.
  static std::string type_name() { return absl::StrCat("RemoteModule[", value_type_name<M>(), "]"); }
  // Adds the reference to the module, and its device, to the message.
  static absl::Status encode(const RemoteModule<M>& module, Encoder& encoder, proto::Value& out) {
    return encode_value<Parts>(Parts(module.get_module_rref(), module.device().str()), encoder, out);
  }
  // InvalidArgument for another kind of value, a reference to another type, or a malformed device.
  static absl::StatusOr<RemoteModule<M>> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(Parts parts, decode_value<Parts>(in, decoder));
    GRADWIRE_ASSIGN_OR_RETURN(Device device, Device::parse(parts.second));
    return RemoteModule<M>(std::move(parts.first), std::move(device));
  }

 private:
  using Parts = std::pair<RRef<M>, std::string>;
};

}  // namespace gradwire::rpc
