#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "gradwire/codec/device.h"
#include "gradwire/rpc/destination.h"
#include "gradwire/rpc/worker.h"

namespace torch::nn {
class Module;
}

// The operations of RemoteModule that need not know the type of the module. They run on the module's worker.
// They throw Error.
namespace gradwire::rpc::module_internal {

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

// Moves the module to a device of this worker. Throws InvalidArgument if it has no such device.
void move_module(torch::nn::Module& module, const std::string& device);

std::vector<at::Tensor> list_parameters(const torch::nn::Module& module, bool recurse);
void set_training(torch::nn::Module& module, bool on);
// Returns the parameters and buffers by their names. They share the module's memory.
std::map<std::string, at::Tensor> read_state(const torch::nn::Module& module);
// Copies `state` into the module. If a name or a shape does not fit, throws InvalidArgument, which names all
// of them, and changes nothing.
void write_state(torch::nn::Module& module, const std::map<std::string, at::Tensor>& state);

}  // namespace gradwire::rpc::module_internal

namespace gradwire::rpc {

// Returns the parameters and buffers of a module of this process by name, as RemoteModule::state_dict does.
// They are detached and share the module's memory. `module` is the implementation: *net of a
// torch::nn::Linear net.
std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& module);
// Copies `state` into a module of this process, as RemoteModule::load_state_dict does. Throws
// InvalidArgument, which names the entries that are missing, unknown or of another shape; then nothing is
// loaded.
void load_state_dict(torch::nn::Module& module, const std::map<std::string, at::Tensor>& state);

}  // namespace gradwire::rpc
