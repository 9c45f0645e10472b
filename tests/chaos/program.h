#pragma once

#include <memory>
#include <set>

#include "gradwire/rpc/agent.h"
#include "gradwire/tests/chaos/plan.h"

namespace chaos {

// Runs the random program of this worker, in its threads; returns when all calls that it made have ended.
void run_program(const std::shared_ptr<gradwire::rpc::Agent>& agent, const Plan& plan, int worker);

// After the programs, without faults: calls to every worker, and the values of all references that this one
// keeps. What is told to be certain must be there; the dead must be known as such.
void look_around(const std::shared_ptr<gradwire::rpc::Agent>& agent, int worker, const std::set<int>& dead);

}  // namespace chaos
