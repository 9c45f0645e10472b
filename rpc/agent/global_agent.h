#pragma once

#include <memory>

namespace gradwire::rpc {

class Agent;

// The agent that init_rpc() started, which the free functions use; nullptr before init_rpc() and after
// shutdown().
std::shared_ptr<Agent> global_agent();
void set_global_agent(std::shared_ptr<Agent> agent);
// Forgets `agent`, which has been shut down. No effect if init_rpc() has started another one since.
void clear_global_agent(const std::shared_ptr<Agent>& agent);

}  // namespace gradwire::rpc
