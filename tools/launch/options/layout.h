#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::tools {

// A group of workers of one node with the same role.
struct RoleCount {
  std::string name;
  int count = 0;
  bool operator==(const RoleCount&) const = default;
};

// One launcher (node) of the job, as the others know it, with its workers. Its local ranks run through the
// roles in order.
struct NodeEntry {
  std::string host;     // For messages.
  std::string address;  // The address at which the others reach it.
  std::vector<RoleCount> roles;
  int local_world_size() const;
  bool operator==(const NodeEntry&) const = default;
};

// The ranks of one worker in the job. "Group" is torchrun's term for a node.
struct WorkerPlace {
  int rank = 0;
  int world_size = 0;
  int local_rank = 0;
  int local_world_size = 0;
  int group_rank = 0;
  int group_world_size = 0;
  std::string role;
  int role_rank = 0;
  int role_world_size = 0;
};

// Returns the places of the workers of node `node_rank`. Ranks run through the nodes in order. Role ranks run
// through all workers of the same role, in the order of their ranks. Nodes may have different numbers of
// workers. InvalidArgument if the job would have more than 2^30 workers.
absl::StatusOr<std::vector<WorkerPlace>> lay_out_ranks(const std::vector<NodeEntry>& nodes, int node_rank);

// Returns the name of a worker in the prefix of teed lines, for example "trainer1": its role, and its number
// among this node's workers of that role (its local rank if all have one role).
std::string local_name(const std::vector<RoleCount>& roles, int local_rank);

}  // namespace gradwire::tools
