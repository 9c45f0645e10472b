#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/membership/group_log.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::rpc {

// The workers of a job, as its store knows them, for a process that does not belong to it. It only reads: it
// finds the group's log (proto/membership.proto) below the prefixes that init methods and the launcher use,
// and follows it. If the store has the logs of several groups, for example those of earlier rounds, it takes
// the last one that has members. Not thread-safe.
class JobDirectory {
 public:
  enum class Standing : uint8_t { kMember, kDead, kLeft };
  struct Entry {
    proto::WorkerRecord record;
    Standing standing = Standing::kMember;
    // Why the worker was declared dead, and by whom.
    std::string reason;
  };

  explicit JobDirectory(std::shared_ptr<store::Store> store);

  // The members in ascending order of their ids, then at most kMostGone workers that were lost last. Errors:
  // NotFound if the store has no group; DeadlineExceeded or Unavailable if it does not answer.
  absl::StatusOr<std::vector<Entry>> read(absl::Duration timeout);
  // The prefix of the group's keys in the store. Set by read().
  const std::string& group() const { return group_; }

  static constexpr std::size_t kMostGone = 64;
  static constexpr std::size_t kMostGroups = 256;

 private:
  // The log of one group, and what it says so far.
  struct Group {
    std::unique_ptr<GroupLog> log;
    std::map<uint64_t, Entry> members;
    // The workers that were lost, oldest first.
    std::vector<Entry> gone;
  };

  absl::Status find_groups(absl::Time deadline);
  static absl::Status follow(Group& group, absl::Time deadline);
  static void apply(const GroupLog::Event& event, Group& group);

  const std::shared_ptr<store::Store> store_;
  // By prefix.
  std::map<std::string, Group> groups_;
  std::string group_;
};

// The prefix below which the log of this key is, for example "round_2/group/rpc/0/rpc" of
// "round_2/group/rpc/0/rpc/log/0/7"; empty if the key is not one of a group's log.
std::string prefix_of_log(absl::string_view key);
// Whether the group with prefix `a` is an earlier one than that with prefix `b`: the numbers in them, which
// are rounds and numbers of groups, are compared.
bool is_earlier_group(absl::string_view a, absl::string_view b);

}  // namespace gradwire::rpc
