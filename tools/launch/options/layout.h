#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::tools {

// Some workers of one node that do the same.
struct RoleCount {
  std::string name;
  int count = 0;
  bool operator==(const RoleCount&) const = default;
};

// One launcher, as the others know it, and what it brings to the job. Its local ranks run through the roles
// in their order.
struct NodeEntry {
  std::string host;     // for people
  std::string address;  // at which the others reach it
  std::vector<RoleCount> roles;
  int local_world_size() const;
  bool operator==(const NodeEntry&) const = default;
};

// Where one worker stands in the job. Group is torchrun's word for node.
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

// The places of the workers of node `node_rank`: ranks run through the nodes in order, role ranks through all
// workers of the same role in the order of their ranks. Nodes may differ in size. InvalidArgument if the job
// would have more than 2^30 workers.
absl::StatusOr<std::vector<WorkerPlace>> lay_out_ranks(const std::vector<NodeEntry>& nodes, int node_rank);

// How a worker's lines are marked when they are teed, "trainer1": its role and its number among this node's
// workers of that role, which is the local rank where all have one role.
std::string local_name(const std::vector<RoleCount>& roles, int local_rank);

}  // namespace gradwire::tools
