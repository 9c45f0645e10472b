#pragma once

#include <string>

#include "gradwire/rpc/rref/references.h"
#include "gradwire/tests/simulation/references/network.h"
#include "gradwire/tests/simulation/references/scheduler.h"

namespace gradwire::references_simulation {

// Names of workers in traces, for example "w3": worker() takes an incarnation, node_name() an index.
std::string worker(uint64_t incarnation);
inline std::string node_name(int index) { return worker(index + 1); }

// Descriptions for traces and violations.
std::string describe(const rpc::Id& id);
std::string describe(const rpc::ReferenceMessage& message);
std::string describe(rpc::ReferenceMessage::Answer answer);
std::string describe(const Packet& packet);
std::string describe(rpc::References::Received received);

}  // namespace gradwire::references_simulation
