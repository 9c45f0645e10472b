#pragma once

#include "gradwire/base/threads/execution_state.h"

namespace gradwire::rpc {

class Agent;

// The agent for which the running code works, if it is known.
using CurrentAgent = ExecutionSlot<Agent>;

}  // namespace gradwire::rpc
