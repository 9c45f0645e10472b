#pragma once

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "gradwire/rpc/membership/roster.h"

namespace gradwire::rpc {

// Whether the members of a group of fixed size come together: a pure state machine, fed with what each line
// of the group's log did, so that all who read it agree.
//
//   forming -> complete   all ids are members, none of them refused. A worker that cannot join later is
//                         refused alone.
//   forming, a refusal    two workers want one place, so one place stays empty: the members so far are
//                         refused. They report it and leave. A worker that has not come yet learns it once
//                         when it comes. Workers that join after that form the group anew.
//
// Not thread-safe.
class Formation {
 public:
  // After the roster has applied the join.
  void joined(const Roster& roster) {
    const std::size_t members = roster.members().size() - refused_.size();
    if (roster.world_size() > 0 && members >= static_cast<std::size_t>(roster.world_size())) complete_ = true;
    failed_by_ = 0;
    told_.clear();
  }
  // A member has left or died.
  void gone(uint64_t incarnation) { refused_.erase(incarnation); }
  // The worker `incarnation` could not join, as the worker that has `id` says. True if that refuses the
  // members: it does while the group forms. The second time it only means that this id has been notified.
  bool refuse(const Roster& roster, uint64_t incarnation, int32_t id) {
    if (has_failed() && incarnation == failed_by_) {
      told_.insert(id);
      return false;
    }
    if (incarnation == 0 || !is_forming(roster)) return false;
    failed_by_ = incarnation;
    told_ = {id};
    for (const auto& [member_id, member] : roster.members()) {
      refused_.insert(member.incarnation);
      told_.insert(member_id);
    }
    return true;
  }

  bool is_forming(const Roster& roster) const {
    return !complete_ && roster.world_size() > 0 && roster.members().size() > refused_.size();
  }
  // Whether the member is refused, and so about to leave.
  bool is_refused(uint64_t incarnation) const { return refused_.contains(incarnation); }
  std::size_t refused() const { return refused_.size(); }
  // Whether nobody has joined since a refusal.
  bool has_failed() const { return failed_by_ != 0; }
  // Whether it has failed, and a worker of this id does not know.
  bool comes_late(int32_t id) const { return has_failed() && !told_.contains(id); }

 private:
  bool complete_ = false;
  // Members all of them.
  absl::flat_hash_set<uint64_t> refused_;
  // The worker whose refusal nobody has joined after, 0 if none, and the ids that know of it.
  uint64_t failed_by_ = 0;
  absl::flat_hash_set<int32_t> told_;
};

}  // namespace gradwire::rpc
