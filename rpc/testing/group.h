#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/link/agent_tables.h"

namespace gradwire::rpc::testing {

// The state of an agent when its tables (AgentTables) are checked for leaks.
enum class LeakCheck {
  // No call is in progress, and the test has released all its references.
  kAll,
  // No call is in progress, but the test may have RRefs.
  kIdle,
  // The agent has been shut down.
  kShutDown,
};
// Returns `tables` without the entries that an agent may have in that state. total() of the result must be 0.
AgentTables entries_that_leak(AgentTables tables, LeakCheck when);

// Several agents in one process, over one HashStore. The destructor shuts them down together, gracefully. The
// test fails if an agent cannot shut down, or if its tables have entries that leak before or after the
// shutdown. Each check waits up to 30 s for work in progress.
class Group {
 public:
  // The agents are named "worker0", "worker1" and so on.
  explicit Group(int world_size, RpcBackendOptions options = {});
  // The agents have the given names, in the order of their ranks.
  explicit Group(std::vector<std::string> names, RpcBackendOptions options = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::shared_ptr<Agent>& operator[](std::size_t rank) const { return agents_.at(rank); }
  std::size_t size() const { return agents_.size(); }

  // Waits until all tables of all agents are empty (LeakCheck::kAll). The test fails after 30 s.
  void expect_empty() const;
  // Shuts all agents down together now. Checks the tables before that, unless an agent was killed, and again
  // after it.
  void shut_down();
  // Ends one agent without a graceful shutdown. The other agents are then not shut down gracefully either.
  void kill(std::size_t rank);

 private:
  void expect_empty(LeakCheck when) const;

  std::vector<std::shared_ptr<Agent>> agents_;
  bool graceful_ = true;
};

}  // namespace gradwire::rpc::testing
