#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/core/observers.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/runtime/runtime.h"
#include "gradwire/store/measured/measured_store.h"

namespace gradwire::rpc {

class Peers;
class RRefService;
class Server;

// Describes the state of one agent to observers (proto/inspect.proto). It reads the tables of the agent's
// sources one after the other, each under its own lock, and costs nothing while nobody asks. Thread-safe. Its
// sources must outlive it.
class Inspector : public ObserverSink {
 public:
  struct Sources {
    AgentRuntime& runtime;
    Peers& peers;
    Server& server;
    RRefService& rrefs;
    // The calls to the store of the group, if the agent counts them.
    const store::StoreTimes& store;
    // The calls that are open, services included.
    std::function<OpenCalls()> open_calls;
    std::function<AgentTables()> tables;
    std::function<AgentStatistics()> statistics;
  };
  explicit Inspector(Sources sources);

  absl::Status may_observe(const std::string& name) override;
  absl::StatusOr<std::string> inspect(const std::string& body) override;

  // The state, with at most `most` entries in each list.
  proto::AgentState state(uint32_t most) const;
  // A part of the flight records.
  proto::AgentState flight(const proto::FlightQuestion& question) const;

 private:
  void read_process(proto::AgentState& state) const;
  void read_numbers(proto::AgentState& state) const;
  void read_store(absl::Time now, proto::AgentState& state) const;

  const Sources sources_;
  const absl::Time started_;
};

}  // namespace gradwire::rpc
