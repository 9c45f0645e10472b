#include "gradwire/collectives/subgroups.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(absl::InvalidArgumentError(what)); }

// Checks that the lists are not empty and have no rank in common.
void check_apart(const char* function, const std::vector<std::vector<int>>& lists) {
  if (lists.empty()) refuse(absl::StrCat(function, ": no lists of ranks are given; expected at least one"));
  HashMap<int, std::size_t> list_of;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (lists[i].empty()) refuse(absl::StrCat(function, ": list ", i, " is empty; expected ranks"));
    for (const int rank : lists[i]) {
      const auto [found, added] = list_of.emplace(rank, i);
      if (added) continue;
      refuse(absl::StrCat(function, ": rank ", rank, " is in list ", found->second, " and in list ", i,
                          "; expected each rank in one list at most"));
    }
  }
}

Subgroups make(const Group& parent, std::vector<std::vector<int>> lists, const NewGroupOptions& options) {
  Subgroups made;
  made.all = parent->new_groups(std::move(lists), options);
  const auto own =
      std::find_if(made.all.begin(), made.all.end(), [](const Group& group) { return group->rank() >= 0; });
  made.own = own == made.all.end() ? made.all.front() : *own;
  return made;
}

}  // namespace

Subgroups new_subgroups(int group_size, const Group& group, const NewGroupOptions& options) {
  const Group parent = group_or_world(group);
  const int size = parent->size();
  if (group_size <= 0) refuse(absl::StrCat("new_subgroups: group_size must be positive, got ", group_size));
  if (size % group_size != 0) {
    refuse(absl::StrCat("new_subgroups: group \"", parent->name(), "\" has ", size,
                        " ranks, which is not a multiple of group_size, ", group_size));
  }
  std::vector<std::vector<int>> lists;
  for (int first = 0; first < size; first += group_size) {
    const auto begin = parent->ranks().begin() + first;
    lists.emplace_back(begin, begin + group_size);
  }
  return make(parent, std::move(lists), options);
}

Subgroups new_subgroups_by_enumeration(std::vector<std::vector<int>> lists, const NewGroupOptions& options,
                                       const Group& group) {
  check_apart("new_subgroups_by_enumeration", lists);
  return make(group_or_world(group), std::move(lists), options);
}

Group split_group(const Group& parent, const std::vector<std::vector<int>>& split_ranks,
                  const NewGroupOptions& options) {
  const Group in = group_or_world(parent);
  check_apart("split_group", split_ranks);
  std::vector<std::vector<int>> lists;
  for (const std::vector<int>& ranks : split_ranks) {
    std::vector<int>& list = lists.emplace_back();
    for (const int rank : ranks) list.push_back(get_global_rank(in, rank));
  }
  return make(in, std::move(lists), options).own;
}

int get_group_rank(const Group& group, int world_rank) {
  const Group in = group_or_world(group);
  const std::vector<int>& ranks = in->ranks();
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), world_rank);
  if (found != ranks.end() && *found == world_rank) return static_cast<int>(found - ranks.begin());
  refuse(absl::StrCat("rank ", world_rank, " is not a member of group \"", in->name(), "\", whose ranks are ",
                      absl::StrJoin(ranks, ", ")));
}

int get_global_rank(const Group& group, int group_rank) {
  const Group in = group_or_world(group);
  if (group_rank >= 0 && group_rank < in->size()) return in->ranks()[static_cast<std::size_t>(group_rank)];
  refuse(absl::StrCat("group \"", in->name(), "\" has no rank ", group_rank, "; its ranks are 0 to ",
                      in->size() - 1));
}

}  // namespace gradwire::collectives
