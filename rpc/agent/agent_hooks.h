#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

// Hooks with which the tests of this library change an agent (RpcBackendOptions::hooks).
struct AgentHooks {
  // Wraps each transport except loopback, for example to inject faults (transport/fault_injection.h).
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)> wrap_transport;
  // Gets the loop in which the agent reads its connections.
  std::function<void(std::shared_ptr<transport::EventLoop>)> loop_made;
  // Looks up the names of hosts in place of the system (TcpOptions::look_up).
  transport::HostLookup look_up_host;
};

inline std::shared_ptr<const AgentHooks> wrap_transports(decltype(AgentHooks::wrap_transport) wrap) {
  return std::make_shared<const AgentHooks>(AgentHooks{std::move(wrap)});
}

}  // namespace gradwire::rpc
