#include "gradwire/tools/launch/arrivals/meeting.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"

namespace gradwire::tools {
namespace {

// The keys of one group, below a prefix "round_R/rendezvous/NAME/NUMBER".
struct Group {
  bool has_size = false;
  bool has_result = false;
  std::vector<int> arrived;
};

// Splits "PREFIX/LAST". Both are empty if there is no slash.
std::pair<absl::string_view, absl::string_view> split_last(absl::string_view key) {
  const std::size_t slash = key.rfind('/');
  if (slash == absl::string_view::npos) return {};
  return {key.substr(0, slash), key.substr(slash + 1)};
}

std::map<std::string, Group> groups_of(const std::vector<std::string>& keys, int world_size) {
  std::map<std::string, Group> groups;
  for (const std::string& key : keys) {
    const auto [prefix, last] = split_last(key);
    if (last == "world_size") {
      groups[std::string(prefix)].has_size = true;
    } else if (last == "result") {
      groups[std::string(prefix)].has_result = true;
    } else if (const auto [group, kind] = split_last(prefix); kind == "waiting") {
      int rank = -1;
      const bool valid = absl::SimpleAtoi(last, &rank) && rank >= 0 && rank < world_size;
      if (valid) groups[std::string(group)].arrived.push_back(rank);
    }
  }
  return groups;
}

}  // namespace

absl::StatusOr<Meeting> read_meeting(store::Store& store, int64_t round, int world_size,
                                     absl::Duration timeout) {
  Clock& clock = Clock::system();
  const absl::Time deadline = clock.now() + timeout;
  const auto left = [&] { return std::max(deadline - clock.now(), absl::ZeroDuration()); };
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> keys,
                            store.try_list_keys_under(absl::StrCat("round_", round, "/rendezvous/"), left()));
  Meeting meeting;
  for (auto& [prefix, group] : groups_of(keys, world_size)) {
    if (!group.has_size || (group.arrived.empty() && !group.has_result)) continue;
    if (left() <= absl::ZeroDuration()) return absl::DeadlineExceededError("the store is slow");
    const absl::StatusOr<std::string> size = store.try_get(prefix + "/world_size", left());
    int number = 0;
    // The key of a group that has just ended may be gone.
    if (!size.ok() && !store::is_wait_timeout(size.status())) return size.status();
    if (!size.ok() || !absl::SimpleAtoi(*size, &number) || number != world_size) continue;
    if (group.has_result) return Meeting{.state = Meeting::State::kOver};
    if (group.arrived.size() <= meeting.arrived.size()) continue;
    meeting.state = Meeting::State::kGoingOn;
    meeting.arrived = std::move(group.arrived);
  }
  std::sort(meeting.arrived.begin(), meeting.arrived.end());
  return meeting;
}

}  // namespace gradwire::tools
