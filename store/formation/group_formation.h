#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::store {

// Describes one process's attempt to form a group. The processes find out, through a store, that all ranks of
// a group have arrived, or that they cannot form a group. In the second case every process that waits for the
// group, or arrives a little later, gets the reason at once, with the names of the processes that caused it.
//
// The groups that form in a store, one after the other, are numbered. A group is complete when all its ranks
// have arrived. It is over when one of them has left; a process that arrives then joins the next group. If a
// member ended without leaving, only processes on its host can find that out.
struct GroupFormation {
  // If negative, the rank is assigned in order of arrival.
  int rank = -1;
  // If 0, the group is open and waits for no other member.
  int world_size = 0;
  // A time of Clock::system().
  absl::Time deadline;
  // Whether the store may end when this process releases it. If the group is refused, such a process waits a
  // little so that the others can read the reason.
  bool may_end_store = false;
  // Whether this process may join while it still has a rank in the current group.
  bool again = false;
  // Where this process shows which ranks are missing while it waits for them.
  Progress::Target progress;
};

// A process's membership in a group.
struct GroupMembership {
  int rank = -1;
  // The group's number.
  int64_t number = 0;
  // The RankClaim that leave_group() gives back; empty in an open group.
  std::string claim;
};

// Joins a group. `store` must have only the keys of groups of one name. Errors; an error that several
// processes caused is reported to each of them:
//   AlreadyExists       two processes claim one rank
//   InvalidArgument     the processes have different world sizes
//   FailedPrecondition  no rank is left to assign; the keys in the store are invalid
//   DeadlineExceeded    a process's deadline has passed; names the ranks that did not arrive
// and the errors of the store.
absl::StatusOr<GroupMembership> form_group(Store& store, const GroupFormation& request);

// Leaves the group. Does nothing if the store cannot be reached.
void leave_group(Store& store, const GroupMembership& membership);

}  // namespace gradwire::store
