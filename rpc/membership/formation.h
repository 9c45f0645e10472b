#pragma once

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "gradwire/rpc/membership/roster.h"

namespace gradwire::rpc {

// Decides whether the members of a group of fixed size come together: a pure state machine. Its inputs are
// the effects of the lines of the group's log, so that all readers come to the same conclusion.
//
//   forming -> complete   All ids are members, and none of these members is refused. After that a worker that
//                         cannot join fails alone.
//   forming -> failed     A worker is refused: two workers want one name or id, so another id would stay
//                         empty. All present members are refused, too: they report the reason and leave. A
//                         worker that comes later learns the reason once. A worker that joins after that
//                         forms the group anew.
//
// Not thread-safe.
class Formation {
 public:
  // Call after the roster has applied a join.
  void joined(const Roster& roster) {
    const std::size_t members = roster.members().size() - refused_.size();
    if (roster.world_size() > 0 && members >= static_cast<std::size_t>(roster.world_size())) complete_ = true;
    failed_by_ = 0;
    informed_.clear();
  }
  // A member has left or died.
  void removed(uint64_t incarnation) { refused_.erase(incarnation); }
  // Call for a Refusal line: worker `incarnation` could not join, as the worker with `id` reports. Returns
  // true if that refuses the present members, which is so while the group forms. A repeated line for the same
  // refusal only records that the worker with `id` knows the reason.
  bool refuse(const Roster& roster, uint64_t incarnation, int32_t id) {
    if (has_failed() && incarnation == failed_by_) {
      informed_.insert(id);
      return false;
    }
    if (incarnation == 0 || !is_forming(roster)) return false;
    failed_by_ = incarnation;
    informed_ = {id};
    for (const auto& [member_id, member] : roster.members()) {
      refused_.insert(member.incarnation);
      informed_.insert(member_id);
    }
    return true;
  }

  bool is_forming(const Roster& roster) const {
    return !complete_ && roster.world_size() > 0 && roster.members().size() > refused_.size();
  }
  // Whether the member is refused. If so, it is about to leave.
  bool is_refused(uint64_t incarnation) const { return refused_.contains(incarnation); }
  std::size_t refused() const { return refused_.size(); }
  // Whether a refusal has happened and no worker has joined after it.
  bool has_failed() const { return failed_by_ != 0; }
  // Whether the formation has failed, and the worker with this id does not know it.
  bool is_late(int32_t id) const { return has_failed() && !informed_.contains(id); }

 private:
  bool complete_ = false;
  // Incarnations of refused members that have not left yet.
  absl::flat_hash_set<uint64_t> refused_;
  // Incarnation of the refused worker; 0 if no refusal has happened, or if a worker has joined after it.
  uint64_t failed_by_ = 0;
  // Ids that know of that refusal.
  absl::flat_hash_set<int32_t> informed_;
};

}  // namespace gradwire::rpc
