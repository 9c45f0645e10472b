#include "gradwire/rpc/inspect/job_directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::rpc {
namespace {

// The prefixes of keys below which groups of agents are: agents with a store of their own, init methods, and
// init methods below a round of the launcher. Other keys of the job are not listed.
constexpr absl::string_view kPlaces[] = {"rpc/", "group/rpc/", "round_"};
constexpr absl::string_view kLog = "rpc/log/";

// The numbers in a text, for example {2, 0} for "round_2/group/rpc/0/rpc".
std::vector<uint64_t> numbers_in(absl::string_view text) {
  std::vector<uint64_t> numbers;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && absl::ascii_isdigit(text[end])) ++end;
    uint64_t number = 0;
    if (absl::SimpleAtoi(text.substr(at, end - at), &number)) numbers.push_back(number);
    at = end + 1;
  }
  return numbers;
}

}  // namespace

std::string prefix_of_log(absl::string_view key) {
  const std::size_t at = key.rfind(kLog);
  if (at == absl::string_view::npos || (at > 0 && key[at - 1] != '/')) return "";
  const std::vector<absl::string_view> numbers = absl::StrSplit(key.substr(at + kLog.size()), '/');
  uint64_t number = 0;
  if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &number) ||
      !absl::SimpleAtoi(numbers[1], &number)) {
    return "";
  }
  return std::string(key.substr(0, at + kLog.size() - absl::string_view("/log/").size()));
}

bool is_earlier_group(absl::string_view a, absl::string_view b) {
  const std::vector<uint64_t> numbers_a = numbers_in(a), numbers_b = numbers_in(b);
  return numbers_a != numbers_b ? numbers_a < numbers_b : a < b;
}

JobDirectory::JobDirectory(std::shared_ptr<store::Store> store) : store_(std::move(store)) {}

absl::Status JobDirectory::find_groups(absl::Time deadline) {
  for (const absl::string_view place : kPlaces) {
    GRADWIRE_ASSIGN_OR_RETURN(const std::vector<std::string> keys,
                              store_->try_list_keys_under(place, deadline - Clock::system().now()));
    for (const std::string& key : keys) {
      const std::string prefix = prefix_of_log(key);
      if (prefix.empty() || groups_.contains(prefix) || groups_.size() >= kMostGroups) continue;
      groups_[prefix].log = std::make_unique<GroupLog>(std::make_shared<store::PrefixStore>(prefix, store_));
    }
  }
  return absl::OkStatus();
}

void JobDirectory::apply(const GroupLog::Event& event, Group& group) {
  using What = Roster::Change::What;
  const uint64_t incarnation = event.change.worker.incarnation;
  if (event.change.what == What::kJoined) {
    group.members[incarnation] = {event.record, Standing::kMember, ""};
    return;
  }
  if (event.change.what != What::kLeft && event.change.what != What::kDied) return;
  auto found = group.members.find(incarnation);
  if (found == group.members.end()) return;
  Entry entry = std::move(found->second);
  group.members.erase(found);
  if (event.change.what == What::kDied) {
    entry.standing = Standing::kDead;
    entry.reason = absl::StrCat(event.reason, " (declared by \"", event.by, "\")");
  } else {
    entry.standing = Standing::kLeft;
  }
  group.gone.push_back(std::move(entry));
  if (group.gone.size() > kMostGone) group.gone.erase(group.gone.begin());
}

absl::Status JobDirectory::follow(Group& group, absl::Time deadline) {
  while (Clock::system().now() < deadline) {
    absl::StatusOr<GroupLog::Event> event = group.log->read(absl::ZeroDuration());
    if (event.ok()) {
      apply(*event, group);
    } else if (store::is_wait_timeout(event.status())) {
      return absl::OkStatus();
    } else if (!absl::IsInvalidArgument(event.status())) {
      return event.status();
    }
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the group's log in ", group.log->store().description(), " is long: raise the timeout"));
}

absl::StatusOr<std::vector<JobDirectory::Entry>> JobDirectory::read(absl::Duration timeout) {
  const absl::Time deadline = Clock::system().now() + timeout;
  GRADWIRE_RETURN_IF_ERROR(find_groups(deadline));
  if (groups_.empty()) {
    return absl::NotFoundError(absl::StrCat("no agent of Gradwire has joined a group in ",
                                            store_->description(), ": is it the store of the job?"));
  }
  // The last group with members, or else the last one.
  const std::pair<const std::string, Group>* best = nullptr;
  for (auto& entry : groups_) {
    GRADWIRE_RETURN_IF_ERROR(follow(entry.second, deadline));
    const bool is_better = best == nullptr || (entry.second.members.empty() == best->second.members.empty()
                                                   ? is_earlier_group(best->first, entry.first)
                                                   : best->second.members.empty());
    if (is_better) best = &entry;
  }
  group_ = best->first;
  std::vector<Entry> workers;
  for (const auto& [incarnation, entry] : best->second.members) workers.push_back(entry);
  std::sort(workers.begin(), workers.end(),
            [](const Entry& a, const Entry& b) { return a.record.id() < b.record.id(); });
  workers.insert(workers.end(), best->second.gone.rbegin(), best->second.gone.rend());
  return workers;
}

}  // namespace gradwire::rpc
