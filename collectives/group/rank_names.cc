#include "gradwire/collectives/group/rank_names.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives {
namespace {

constexpr std::size_t kMostRanksNamed = 16;

bool differ(const std::vector<int>& world_ranks) {
  for (std::size_t i = 0; i < world_ranks.size(); ++i) {
    if (world_ranks[i] != static_cast<int>(i)) return true;
  }
  return false;
}

}  // namespace

std::string name_rank(int rank, const std::vector<int>& world_ranks) {
  const int in_world = world_ranks.at(static_cast<std::size_t>(rank));
  return in_world == rank ? absl::StrCat("rank ", rank)
                          : absl::StrCat("rank ", rank, " (rank ", in_world, " of the world)");
}

absl::Status explain_ranks(const absl::Status& status, const std::vector<int>& world_ranks) {
  if (status.ok() || !absl::StrContains(status.message(), "rank") || !differ(world_ranks)) return status;
  const auto named = static_cast<std::ptrdiff_t>(std::min(world_ranks.size(), kMostRanksNamed));
  const std::string ranks = absl::StrJoin(world_ranks.begin(), world_ranks.begin() + named, ", ");
  return with_worker(
      absl::Status(
          status.code(),
          absl::StrCat(status.message(), " [these are ranks of the group; its ranks in the world are ", ranks,
                       world_ranks.size() > kMostRanksNamed ? ", ..." : "", "]")),
      worker_of(status));
}

}  // namespace gradwire::collectives
