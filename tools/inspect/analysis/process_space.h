#pragma once

#include <compare>
#include <string>

#include "gradwire/base/process/host.h"
#include "gradwire/proto/inspect.pb.h"

namespace gradwire::inspect {

// The processes among which a process id names one process. Containers of one host have one boot, and often
// the same process ids, so the name of the host counts too.
struct ProcessSpace {
  std::string boot;
  std::string host;

  // Without a boot nothing is known about the space.
  bool known() const { return !boot.empty(); }
  friend auto operator<=>(const ProcessSpace&, const ProcessSpace&) = default;
};

// The space of a worker's process, as its state says.
inline ProcessSpace space_of(const proto::AgentState& state) { return {state.boot(), state.host()}; }
// That of this process.
inline ProcessSpace own_space() { return {boot_id(), host_name()}; }

}  // namespace gradwire::inspect
