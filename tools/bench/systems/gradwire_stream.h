#pragma once

#include <memory>

#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/destination.h"
#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// Reads one stream of strings from the worker `to`, and counts the items. The size of an item is in the name
// of the case.
Measurement run_stream(const std::shared_ptr<rpc::Agent>& agent, const rpc::Destination& to,
                       const Task& task);

}  // namespace gradwire::bench
