#include "gradwire/rpc/modules/remote_module_methods.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/tensor_set.h"

namespace gradwire::rpc::module_internal {

Location parse_location(const std::string& location) {
  const std::size_t slash = location.rfind('/');
  const std::string worker = location.substr(0, slash);
  Location parts{Destination(worker), Device()};
  int rank = -1;
  if (absl::StartsWith(worker, "rank:") && absl::SimpleAtoi(worker.substr(5), &rank) && rank >= 0)
    parts.worker = Destination(rank);
  absl::StatusOr<Device> device =
      slash == std::string::npos ? Device() : Device::parse(location.substr(slash + 1));
  if (worker.empty() || !device.ok()) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("invalid location of a remote module: got \"", location,
                     "\", expected \"WORKER\" or \"WORKER/DEVICE\", for example \"worker1/cuda:0\" or "
                     "\"rank:1/cuda:0\"")));
  }
  parts.device = *std::move(device);
  return parts;
}

Destination destination_for(const Worker& owner, const Device& device, bool on_cpu) {
  Destination to = Destination::incarnation_of(owner);
  return device.is_cpu() || !on_cpu ? to : to.with_device_map({{Device(), device}});
}

void move_module(torch::nn::Module& module, const std::string& device) {
  // libtorch's own error for a kind of device that it was not built with is of no help.
  absl::StatusOr<Device> parsed = Device::parse(device);
  const std::vector<Device> devices = tensor_backend()->accelerators();
  if (!parsed.ok() || !contains(devices, *parsed)) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "cannot move the module to ", device, ": this worker has the devices ", to_string(devices))));
  }
  const c10::Device to(*parsed);
  // A module may make its parameters on a device itself. Some kinds of devices allow nothing else: libtorch
  // cannot turn a tensor on the CPU into one on such a device in place.
  const auto there = [&to](const at::Tensor& tensor) { return tensor.device() == to; };
  const std::vector<at::Tensor> parameters = module.parameters();
  const std::vector<at::Tensor> buffers = module.buffers();
  if (std::all_of(parameters.begin(), parameters.end(), there) &&
      std::all_of(buffers.begin(), buffers.end(), there)) {
    return;
  }
  module.to(to, /*non_blocking=*/true);
}

std::vector<at::Tensor> list_parameters(const torch::nn::Module& module, bool recurse) {
  return module.parameters(recurse);
}

void set_training(torch::nn::Module& module, bool on) { module.train(on); }

std::map<std::string, at::Tensor> read_state(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> state;
  for (const auto& entry : module.named_parameters()) state.emplace(entry.key(), entry.value().detach());
  for (const auto& entry : module.named_buffers()) state.emplace(entry.key(), entry.value().detach());
  return state;
}

void write_state(torch::nn::Module& module, const std::map<std::string, at::Tensor>& state) {
  std::map<std::string, at::Tensor> own = read_state(module);
  std::vector<std::string> problems;
  for (const auto& [name, tensor] : own) {
    auto given = state.find(name);
    if (given == state.end()) {
      problems.push_back(absl::StrCat(name, " is missing"));
    } else if (given->second.sizes() != tensor.sizes()) {
      problems.push_back(absl::StrCat(name, " has shape [", absl::StrJoin(given->second.sizes(), ", "),
                                      "] instead of [", absl::StrJoin(tensor.sizes(), ", "), "]"));
    }
  }
  for (const auto& [name, tensor] : state) {
    if (!own.contains(name)) problems.push_back(absl::StrCat("the module has no ", name));
  }
  if (!problems.empty()) {
    throw Error(absl::InvalidArgumentError(absl::StrCat("load_state_dict: ", absl::StrJoin(problems, "; "))));
  }
  // The detached tensors share the module's memory.
  for (auto& [name, tensor] : own) tensor.copy_(state.at(name));
}

}  // namespace gradwire::rpc::module_internal

namespace gradwire::rpc {

std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& module) {
  return module_internal::read_state(module);
}

void load_state_dict(torch::nn::Module& module, const std::map<std::string, at::Tensor>& state) {
  module_internal::write_state(module, state);
}

}  // namespace gradwire::rpc
