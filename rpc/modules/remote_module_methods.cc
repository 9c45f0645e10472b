#include "gradwire/rpc/modules/remote_module_methods.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/registry/registry.h"
#include "gradwire/rpc/registry/serve.h"

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

torch::nn::Module& ModuleReference::local_value() const {
  const OwnedValue owned = rref_internal::local_value(handle_.get(), std::nullopt, /*type=*/nullptr);
  torch::nn::Module* module = owned.type->module(owned.value.get());
  // The caller has named the type of the reference.
  if (module == nullptr || owned.type->name() != handle_->type()) {
    throw Error(
        absl::InvalidArgumentError(absl::StrCat("expected an RRef to a module of the class ", handle_->type(),
                                                ", got one to a ", owned.type->name())));
  }
  return *module;
}

void move_to(const ModuleReference& reference, const std::string& device) {
  // libtorch's own error for a kind of device that it was not built with is of no help.
  absl::StatusOr<Device> parsed = Device::parse(device);
  const std::vector<Device> devices = tensor_backend()->accelerators();
  if (!parsed.ok() || !contains(devices, *parsed)) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "cannot move the module to ", device, ": this worker has the devices ", to_string(devices))));
  }
  torch::nn::Module& module = reference.local_value();
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

std::vector<RRef<at::Tensor>> parameters_of(const ModuleReference& module, bool recurse) {
  return parameter_rrefs(module.local_value(), recurse);
}

void train(const ModuleReference& module, bool on) { module.local_value().train(on); }

std::map<std::string, at::Tensor> state_of(const ModuleReference& module) {
  return state_dict(module.local_value());
}

void load_state(const ModuleReference& module, const std::map<std::string, at::Tensor>& state) {
  load_state_dict(module.local_value(), state);
}

namespace {

// Whether the call's first argument is a reference to the class whose name is in the callee's name. F serves
// all classes, but a policy may allow a caller to use only one of them.
absl::Status check_class(const ServerCall& call) {
  const IncomingPayload& in = call.arguments();
  if (in.payload->values_size() == 0) return absl::OkStatus();  // F says how many there must be.
  Decoder decoder = in.decoder();
  GRADWIRE_ASSIGN_OR_RETURN(const ModuleReference module,
                            Codec<ModuleReference>::decode(in.payload->values(0), decoder));
  const std::string& type = module.handle()->type();
  if (call.callee().substr(0, call.callee().rfind("::")) == type) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", call.callee(), "\" takes an RRef to a module of its class, got one to a ", type));
}

template <auto F>
void serve(const std::shared_ptr<ServerCall>& call) {
  const absl::Status status = check_class(*call);
  if (!status.ok()) {
    call->fail(status);
  } else {
    serve_internal::serve<F>(call);
  }
}

// Registers a callee of a module class that serves calls by F.
template <auto F>
const Callee* add(const std::string& type, const std::string& reference, const char* operation) {
  Callee callee;
  callee.name = absl::StrCat(type, "::", operation, "()");
  callee.signature = absl::StrReplaceAll(FunctionTraits<decltype(F)>::signature(),
                                         {{Codec<ModuleReference>::type_name(), reference}});
  callee.serve = &serve<F>;
  return Registry::instance().add(std::move(callee));
}

}  // namespace

ModuleCallees register_module(const std::string& type, const std::string& reference, std::string signature,
                              ServeHandler serve) {
  Callee forward;
  forward.name = absl::StrCat(type, "::forward()");
  forward.signature = absl::StrReplaceAll(signature, {{Codec<ModuleReference>::type_name(), reference}});
  forward.serve = serve;
  return ModuleCallees{.parameters = add<&parameters_of>(type, reference, "parameters"),
                       .train = add<&train>(type, reference, "train"),
                       .state = add<&state_of>(type, reference, "state_dict"),
                       .load_state = add<&load_state>(type, reference, "load_state_dict"),
                       .move_to = add<&move_to>(type, reference, "to"),
                       .forward = Registry::instance().add(std::move(forward))};
}

std::string name_of_callee(const Callee* callee, const std::string& type) {
  return callee == nullptr ? type : callee->name;
}

void set_callee(OutgoingCall& call, const Callee* callee, const std::string& type) {
  if (callee == nullptr) {
    call.set_status(Registry::unregistered_module(type));
    return;
  }
  call_internal::set_callee(call, *callee, CalleeKind::kFunction);
}

}  // namespace gradwire::rpc::module_internal

namespace gradwire::rpc {

absl::Status Codec<module_internal::ModuleReference>::encode(const module_internal::ModuleReference& module,
                                                             Encoder& encoder, proto::Value& out) {
  return rref_internal::encode(module.handle(), encoder, out);
}

absl::StatusOr<module_internal::ModuleReference> Codec<module_internal::ModuleReference>::decode(
    const proto::Value& in, Decoder& decoder) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<RRefHandle> handle,
                            rref_internal::decode(in, decoder, "torch::nn::Module"));
  return module_internal::ModuleReference(std::move(handle));
}

std::vector<RRef<at::Tensor>> parameter_rrefs(const torch::nn::Module& module, bool recurse) {
  std::vector<RRef<at::Tensor>> references;
  for (at::Tensor& parameter : module.parameters(recurse)) references.emplace_back(std::move(parameter));
  return references;
}

std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> state;
  for (const auto& entry : module.named_parameters()) state.emplace(entry.key(), entry.value().detach());
  for (const auto& entry : module.named_buffers()) state.emplace(entry.key(), entry.value().detach());
  return state;
}

void load_state_dict(torch::nn::Module& module, const std::map<std::string, at::Tensor>& state) {
  std::map<std::string, at::Tensor> own = state_dict(module);
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

}  // namespace gradwire::rpc
