#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rpc/agent.h"
#include "rpc/options.h"

namespace gradwire::rpc::testing {

// Several agents in one process, "worker0" and up, over one HashStore. At its end they shut down together,
// gracefully, and the test fails if one of them cannot, or holds anything but RRefs that the test still has.
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
  // Shuts all down together now.
  void shut_down();
  // Ends one agent without a goodbye to the group; the destructor then ends the others not gracefully.
  void kill(std::size_t rank);

 private:
  std::vector<std::shared_ptr<Agent>> agents_;
  bool graceful_ = true;
};

}  // namespace gradwire::rpc::testing
