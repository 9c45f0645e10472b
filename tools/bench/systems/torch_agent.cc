#include "gradwire/tools/bench/systems/torch_agent.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>

#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::bench {

namespace trpc = torch::distributed::rpc;

namespace {

// The callback of torch, with a workaround for a bug: when a holder that is not the last one releases a
// reference, torch's handleRRefDelete() reads an absent optional value, and the owner process dies. The
// callback of torch's Python front end has the same override.
class RequestCallback final : public trpc::RequestCallbackNoPython {
  void handleRRefDelete(c10::intrusive_ptr<trpc::RRef>& /*none_of_python*/) const override {}
};

}  // namespace

std::string TorchAgent::listen(const Endpoint& endpoint) {
  if (endpoint.rank != 0) return "";
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const std::string address = absl::StrCat(store->getPort());
  store_ = store;
  return address;
}

void TorchAgent::join(const Endpoint& endpoint, const std::vector<c10::Device>& devices) {
  if (!store_) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(std::stoi(endpoint.addresses.at(0)));
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  std::optional<std::vector<std::string>> transports;
  std::optional<std::vector<std::string>> channels;
  if (endpoint.transport == "tcp") {
    transports = {"uv"};
    channels = {"mpt_uv", "basic"};
  }
  // The maps of tensors to the others, and of tensors from them.
  std::unordered_map<std::string, trpc::DeviceMap> maps;
  if (!devices.empty()) {
    trpc::DeviceMap same;
    for (const c10::Device& device : devices) same.emplace(device, device);
    for (int i = 0; i < endpoint.size; ++i) {
      if (i != endpoint.rank) maps.emplace(absl::StrCat("w", i), same);
    }
  }
  trpc::TensorPipeRpcBackendOptions options(16, transports, channels, /*rpc_timeout=*/60, "env://", maps,
                                            devices);
  agent_ = std::make_shared<trpc::TensorPipeAgent>(
      c10::make_intrusive<c10d::PrefixStore>("rpc", store_), absl::StrCat("w", endpoint.rank),
      static_cast<trpc::worker_id_t>(endpoint.rank), endpoint.size, options, maps, devices,
      std::make_unique<RequestCallback>());
  // These three steps are required: without them the first call aborts the process.
  agent_->setTypeResolver(std::make_shared<trpc::TypeResolver>([](const c10::QualifiedName& name) {
    torch::jit::ScriptTypeParser parser;
    return c10::StrongTypePtr(nullptr, parser.parseType(name.qualifiedName()));
  }));
  torch::distributed::autograd::DistAutogradContainer::init(endpoint.rank);
  trpc::RpcAgent::setCurrentRpcAgent(agent_);
  agent_->start();
  for (int i = 0; i < endpoint.size; ++i) workers_.push_back(agent_->getWorkerInfo(absl::StrCat("w", i)));
}

std::shared_ptr<torch::jit::Operator> TorchAgent::operation(const std::string& name,
                                                            const std::string& overload) {
  for (const auto& candidate : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name))) {
    if (candidate->schema().overload_name() == overload) return candidate;
  }
  throw std::runtime_error(absl::StrCat("libtorch has no operator ", name, ".", overload));
}

c10::intrusive_ptr<c10::ivalue::Future> TorchAgent::call(int to,
                                                         const std::shared_ptr<torch::jit::Operator>& op,
                                                         std::vector<c10::IValue> arguments) const {
  return agent_->send(worker(to), trpc::ScriptCall(op, std::move(arguments)).toMessage());
}

c10::IValue TorchAgent::result(c10::ivalue::Future& future) {
  future.waitAndThrow();
  return trpc::deserializeRespToIValue(*future.constValue().toCustomClass<trpc::Message>());
}

}  // namespace gradwire::bench
