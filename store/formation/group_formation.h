#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/store/store.h"

namespace gradwire::store {

// One process's part in finding out, by a store, that all ranks of a group are there, or that they cannot be
// a group: which all who wait for it, and who come later, then hear at once, with the processes that are to
// blame.
//
// The groups that form in a store one after the other are numbered. A group is complete when all its ranks
// have come, and over when one of them has left: who comes then, comes to the next. Where a member has ended
// without leaving, that is known on its host alone.
struct GroupFormation {
  // Negative: it is assigned, in order of arrival.
  int rank = -1;
  // 0: an open group, which waits for nobody.
  int world_size = 0;
  // Of Clock::system().
  absl::Time deadline;
  // The store may end when this process gives it back: when it hears that there will be no group, it waits a
  // little for others to hear it too.
  bool may_end_store = false;
  // The process may be that rank of the last group still.
  bool again = false;
};

// What a process has in a group.
struct Place {
  int rank = -1;
  // The group's number.
  int64_t number = 0;
  // To leave by.
  std::string claim;
};

// `book` has the keys of groups of one name alone. Errors, those by several told to each of them:
//   AlreadyExists       two processes come as one rank
//   InvalidArgument     they say different world sizes
//   FailedPrecondition  no rank is left to assign; what the book holds makes no sense
//   DeadlineExceeded    as soon as it is too late for one: with the ranks that did not come
// and the store's.
absl::StatusOr<Place> form_group(Store& book, const GroupFormation& call);

// The process is no longer in the group. A store that is gone by then is no matter.
void leave_place(Store& book, const Place& place);

}  // namespace gradwire::store
