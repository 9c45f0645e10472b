#include "gradwire/rpc/torch/remote_module_methods.h"

#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc::module_internal {

std::string worker_of_location(const std::string& location) {
  const std::size_t slash = location.rfind('/');
  const std::string worker = location.substr(0, slash);
  const std::string device = slash == std::string::npos ? "cpu" : location.substr(slash + 1);
  if (worker.empty())
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("invalid location of a remote module: got \"", location, "\", expected \"WORKER\"")));
  if (device != "cpu") {
    throw Error(
        absl::InvalidArgumentError(absl::StrCat("invalid location of a remote module: got \"", location,
                                                "\" with device \"", device, "\", expected device \"cpu\"")));
  }
  return worker;
}

std::vector<at::Tensor> list_parameters(const torch::nn::Module& module) { return module.parameters(); }

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
