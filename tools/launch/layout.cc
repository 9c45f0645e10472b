#include "tools/launch/layout.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace gradwire::tools {

absl::StatusOr<std::vector<WorkerPlace>> lay_out_ranks(const std::vector<NodeEntry>& nodes, int node_rank) {
  constexpr int64_t kMaxWorkers = int64_t{1} << 30;
  const NodeEntry& self = nodes.at(node_rank);
  int64_t world_size = 0, first_rank = 0, role_world_size = 0, first_role_rank = 0;
  for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
    const NodeEntry& entry = nodes[node];
    if (node < node_rank) first_rank += entry.local_world_size;
    world_size += entry.local_world_size;
    if (entry.role != self.role) continue;
    if (node < node_rank) first_role_rank += entry.local_world_size;
    role_world_size += entry.local_world_size;
  }
  if (world_size > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat(world_size, " workers are too many for one job"));
  }
  std::vector<WorkerPlace> places;
  for (int local_rank = 0; local_rank < self.local_world_size; ++local_rank) {
    places.push_back({.rank = static_cast<int>(first_rank) + local_rank,
                      .world_size = static_cast<int>(world_size),
                      .local_rank = local_rank,
                      .local_world_size = self.local_world_size,
                      .group_rank = node_rank,
                      .group_world_size = static_cast<int>(nodes.size()),
                      .role = self.role,
                      .role_rank = static_cast<int>(first_role_rank) + local_rank,
                      .role_world_size = static_cast<int>(role_world_size)});
  }
  return places;
}

}  // namespace gradwire::tools
