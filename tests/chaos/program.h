#pragma once

#include <memory>
#include <set>

#include "gradwire/rpc/calls/agent.h"
#include "gradwire/tests/chaos/plan.h"

namespace chaos {

// Runs the random program of this worker in plan.threads threads. Returns when all its calls have ended.
void run_program(const std::shared_ptr<gradwire::rpc::Agent>& agent, const Plan& plan, int worker);

// Checks this worker after its program, when no faults occur any more: calls every worker, and fetches the
// values of all references that this worker holds. `dead`: the dead workers. The driver checks the log of
// these calls: a call to a dead worker must fail with Unavailable, a call to a living one must succeed, and a
// value that is certain (services.h) must be available.
void check_workers_and_references(const std::shared_ptr<gradwire::rpc::Agent>& agent, int worker,
                                  const std::set<int>& dead);

}  // namespace chaos
