#pragma once

#include <memory>

namespace gradwire::rpc {

class Agent;

// The agent that init_rpc made and the free functions act on; nullptr while there is none.
std::shared_ptr<Agent> global_agent();
void set_global_agent(std::shared_ptr<Agent> agent);

}  // namespace gradwire::rpc
