#pragma once

#include "gradwire/base/threads/execution_state.h"

namespace gradwire::rpc {

class Agent;

// The agent of the code that runs, where it is known.
using CurrentAgent = ExecutionSlot<Agent>;

}  // namespace gradwire::rpc
