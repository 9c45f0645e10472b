#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

// What RemoteModule does to any module, where the module is. Errors are thrown as Error.
namespace gradwire::rpc::module_internal {

// The worker of "worker" or "worker/cpu"; InvalidArgument for another device or an empty name.
std::string worker_of_location(const std::string& location);

std::vector<at::Tensor> list_parameters(const torch::nn::Module& module);
void set_training(torch::nn::Module& module, bool on);
// Parameters and buffers, by their names.
std::map<std::string, at::Tensor> read_state(const torch::nn::Module& module);
// Copies `state` into the module; all or nothing.
void write_state(torch::nn::Module& module, const std::map<std::string, at::Tensor>& state);

}  // namespace gradwire::rpc::module_internal
