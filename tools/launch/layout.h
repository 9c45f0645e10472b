#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::tools {

// What one node brings to the job.
struct NodeEntry {
  std::string host;
  std::string role;
  int local_world_size = 0;
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

// The places of the workers of node `node_rank`: ranks run through the nodes in order, role ranks through the
// nodes of the same role. Nodes may differ in size. InvalidArgument if the job would have more than 2^30
// workers.
absl::StatusOr<std::vector<WorkerPlace>> lay_out_ranks(const std::vector<NodeEntry>& nodes, int node_rank);

}  // namespace gradwire::tools
