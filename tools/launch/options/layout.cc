#include "gradwire/tools/launch/options/layout.h"

#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"

namespace gradwire::tools {

int NodeEntry::local_world_size() const {
  int size = 0;
  for (const RoleCount& role : roles) size += role.count;
  return size;
}

// Ranks follow the nodes, and on each node the roles. Every node computes its own part from the same list,
// so the nodes need not exchange ranks. Sums are 64 bits wide, because the counts come from other nodes.
absl::StatusOr<std::vector<WorkerPlace>> lay_out_ranks(const std::vector<NodeEntry>& nodes, int node_rank) {
  constexpr int64_t kMaxWorkers = int64_t{1} << 30;
  int64_t world_size = 0, first_rank = 0;
  std::map<std::string, int64_t> role_sizes, next_role_ranks;
  for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
    for (const RoleCount& role : nodes[node].roles) {
      world_size += role.count;
      role_sizes[role.name] += role.count;
      if (node >= node_rank) continue;
      first_rank += role.count;
      next_role_ranks[role.name] += role.count;
    }
  }
  if (world_size > kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("too many workers in one job: got ", world_size, ", the limit is ", kMaxWorkers));
  }
  const NodeEntry& self = nodes.at(node_rank);
  std::vector<WorkerPlace> places;
  for (const RoleCount& role : self.roles) {
    for (int i = 0; i < role.count; ++i) {
      const int local_rank = static_cast<int>(places.size());
      places.push_back({.rank = static_cast<int>(first_rank) + local_rank,
                        .world_size = static_cast<int>(world_size),
                        .local_rank = local_rank,
                        .local_world_size = self.local_world_size(),
                        .group_rank = node_rank,
                        .group_world_size = static_cast<int>(nodes.size()),
                        .role = role.name,
                        .role_rank = static_cast<int>(next_role_ranks[role.name]++),
                        .role_world_size = static_cast<int>(role_sizes[role.name])});
    }
  }
  return places;
}

std::string local_name(const std::vector<RoleCount>& roles, int local_rank) {
  std::map<std::string, int> seen;
  int first = 0;
  for (const RoleCount& role : roles) {
    if (local_rank < first + role.count) {
      return absl::StrCat(role.name, seen[role.name] + local_rank - first);
    }
    first += role.count;
    seen[role.name] += role.count;
  }
  return absl::StrCat(local_rank);
}

}  // namespace gradwire::tools
