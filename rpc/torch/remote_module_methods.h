#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

// The operations of RemoteModule that need not know the type of the module. They run on the module's worker.
// They throw Error.
namespace gradwire::rpc::module_internal {

// Returns the worker's name in "worker" or "worker/cpu". Throws InvalidArgument for another device or an
// empty name.
std::string worker_of_location(const std::string& location);

std::vector<at::Tensor> list_parameters(const torch::nn::Module& module);
void set_training(torch::nn::Module& module, bool on);
// Returns the parameters and buffers by their names. They share the module's memory.
std::map<std::string, at::Tensor> read_state(const torch::nn::Module& module);
// Copies `state` into the module. If a name or a shape does not fit, throws InvalidArgument, which names all
// of them, and changes nothing.
void write_state(torch::nn::Module& module, const std::map<std::string, at::Tensor>& state);

}  // namespace gradwire::rpc::module_internal
