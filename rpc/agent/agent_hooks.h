#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

// Hooks by which this library's tests reach into an agent (RpcBackendOptions::hooks).
struct AgentHooks {
  // Puts something around each transport but loopback, faults for example (transport/fault_injection.h).
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)> wrap_transport;
};

inline std::shared_ptr<const AgentHooks> wrap_transports(decltype(AgentHooks::wrap_transport) wrap) {
  return std::make_shared<const AgentHooks>(AgentHooks{std::move(wrap)});
}

}  // namespace gradwire::rpc
