#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/options.h"

namespace gradwire::rpc::testing {

// When somebody looks at an agent's tables (AgentTables).
enum class Empty {
  // All that the test had is gone, and so is what follows from it.
  kAll,
  // Nothing is under way, but the test has RRefs.
  kIdle,
  // The agent has been shut down.
  kShutDown,
};
// `tables` without what may be there at that moment: total() of the rest is 0.
AgentTables of_interest(AgentTables tables, Empty empty);

// Several agents in one process, "worker0" and up, over one HashStore. At its end they shut down together,
// gracefully. The test fails if one of them cannot, or if its tables hold, before or after that, what they
// should not (of_interest); what is under way before that has half a minute.
class Group {
 public:
  explicit Group(int world_size, RpcBackendOptions options = {});
  // Another name for each agent.
  explicit Group(std::vector<std::string> names, RpcBackendOptions options = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::shared_ptr<Agent>& operator[](std::size_t rank) const { return agents_.at(rank); }
  std::size_t size() const { return agents_.size(); }

  // Waits until all tables of all agents are empty; the test fails after 30 s.
  void expect_empty() const;
  // Shuts all down together now. The tables are looked at before that if nobody has been killed, and after
  // it.
  void shut_down();
  // Ends one agent without a goodbye to the group; the destructor then ends the others not gracefully.
  void kill(std::size_t rank);

 private:
  void expect_empty(Empty empty) const;

  std::vector<std::shared_ptr<Agent>> agents_;
  bool graceful_ = true;
};

}  // namespace gradwire::rpc::testing
