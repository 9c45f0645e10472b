#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "gradwire/codec/device.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/destination.h"
#include "gradwire/rpc/core/worker.h"

namespace torch::nn {
class Module;
}

namespace gradwire::rpc {

// Returns references to the parameters of a module of this process, which the current agent owns, for example
// for a DistributedOptimizer together with those of remote modules. They share the parameters' memory. Throws
// FailedPrecondition without an agent.
std::vector<RRef<at::Tensor>> parameter_rrefs(const torch::nn::Module& module, bool recurse = true);

}  // namespace gradwire::rpc

// The operations of RemoteModule. They throw Error. Each module class has callees of its own, with its name,
// so that a policy can allow some classes only. But those that need not know the class run the same
// functions, because a program may register a hundred module classes.
namespace gradwire::rpc::module_internal {

// A reference to a module, as the parameter of functions that serve modules of all classes.
class ModuleReference {
 public:
  explicit ModuleReference(std::shared_ptr<RRefHandle> handle) : handle_(std::move(handle)) {}

  // Returns the module, as RRef::local_value does. InvalidArgument if the value is not a module, or is one of
  // another class.
  torch::nn::Module& local_value() const;
  // The same as an M. InvalidArgument if the value is not an M.
  template <class M>
  M& local_value_as() const {
    return *static_cast<M*>(rref_internal::local_value(handle_.get(), std::nullopt, &typeid(M)).value.get());
  }
  const std::shared_ptr<RRefHandle>& handle() const { return handle_; }

 private:
  std::shared_ptr<RRefHandle> handle_;
};

// Functions that the module's worker runs.
std::vector<RRef<at::Tensor>> parameters_of(const ModuleReference& module, bool recurse);
void train(const ModuleReference& module, bool on);
// Returns the parameters and buffers by their names. They share the module's memory.
std::map<std::string, at::Tensor> state_of(const ModuleReference& module);
// Copies `state` into the module, as load_state_dict does.
void load_state(const ModuleReference& module, const std::map<std::string, at::Tensor>& state);
// Moves the module to a device of this worker. InvalidArgument if it has no such device.
void move_to(const ModuleReference& module, const std::string& device);

// The callees for one module class; nullptr if it is not registered.
struct ModuleCallees {
  const Callee* parameters = nullptr;
  const Callee* train = nullptr;
  const Callee* state = nullptr;
  const Callee* load_state = nullptr;
  const Callee* move_to = nullptr;
  // Forward of a module on a device.
  const Callee* forward = nullptr;
};
// Registers the callees for a module class. `type`: its name. `reference`: the name of an RRef to it.
// `signature` and `serve` belong to the function that calls its forward.
ModuleCallees register_module(const std::string& type, const std::string& reference, std::string signature,
                              ServeHandler serve);

// One of ModuleCallees, which runs F.
template <auto F>
struct ModuleCall {
  const Callee* callee;
  // The module class, for messages.
  const std::string& type;
};
std::string name_of_callee(const Callee* callee, const std::string& type);
// Sets the callee of the call. If it is nullptr, sets the call's status to an error.
void set_callee(OutgoingCall& call, const Callee* callee, const std::string& type);
template <auto F>
std::string callee_name(const ModuleCall<F>& call) {
  return name_of_callee(call.callee, call.type);
}
template <auto F, class... A>
void prepare_call(OutgoingCall& out, const ModuleCall<F>& call, A&&... arguments) {
  set_callee(out, call.callee, call.type);
  call_internal::add_arguments<FunctionTraits<decltype(F)>>(out, std::forward<A>(arguments)...);
}

// The parts of "worker" (on the CPU) or "worker/device". The worker is named, or is "rank:N".
struct Location {
  Destination worker;
  Device device;
};
// Throws InvalidArgument for an empty worker, or a malformed device.
Location parse_location(const std::string& location);

// The destination of a call to a module on `device`, with tensors that are all on the caller's CPU or, if not
// `on_cpu`, on any devices. Tensors on the CPU then travel to the module's device and back to the CPU.
Destination destination_for(const Worker& owner, const Device& device, bool on_cpu);

}  // namespace gradwire::rpc::module_internal

namespace gradwire::rpc {

// Sends a reference to a module.
template <>
struct Codec<module_internal::ModuleReference> {
  // Stands for the name of a reference to the module's class.
  static std::string type_name() { return "RRef[torch::nn::Module]"; }
  // Errors: those of Encoder::add_reference.
  static absl::Status encode(const module_internal::ModuleReference& module, Encoder& encoder,
                             proto::Value& out);
  // InvalidArgument when the message contains another kind of value.
  static absl::StatusOr<module_internal::ModuleReference> decode(const proto::Value& in, Decoder& decoder);
};

// Returns the parameters and buffers of a module of this process by name, as RemoteModule::state_dict does.
// They are detached and share the module's memory. `module` is the implementation: *net of a
// torch::nn::Linear net.
std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& module);
// Copies `state` into a module of this process, as RemoteModule::load_state_dict does. Throws
// InvalidArgument, which names the entries that are missing, unknown or of another shape; then nothing is
// loaded.
void load_state_dict(torch::nn::Module& module, const std::map<std::string, at::Tensor>& state);

}  // namespace gradwire::rpc
