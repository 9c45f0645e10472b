#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/rpc/agent/membership.h"
#include "gradwire/rpc/callee/served_calls.h"
#include "gradwire/rpc/caller/caller.h"

namespace gradwire::rpc {

// The parts of an agent that a graceful shutdown uses.
struct ShutdownParts {
  AgentRuntime& runtime;
  Peers& peers;
  ReferenceDriver& references;
  Caller& caller;
  ServedCalls& served;
  Membership& membership;
};

// One graceful shutdown of an agent, up to the moment when everything may stop. All members agree first, in
// rounds over the store:
//
//   1. Wait until nothing of one's own is under way. For an open group that is all.
//   2. Write how many calls this worker has ever sent, and read what the others wrote in the same round.
//      While a report is missing, ping the member that owes it, and end when any member has been lost.
//   3. Repeat until two rounds in a row say the same and all were idle.
//   4. After a failure, find the member whose end was the cause. The first failure is shared, so that all
//      members name the same one.
//   5. Leave the group, and wait until the others have left too.
//
// Two equal rounds are enough: at the moment when the last report of the first one was written nothing can
// have been under way, since whoever had sent it would not have been idle before, or would have counted it
// after. Everybody reads the same reports and so everybody decides alike.
//
// Errors: DeadlineExceeded, with what is under way or who has not come; Unavailable, when a member or the
// store was lost; Aborted, when the group has given this worker up; FailedPrecondition after a shutdown
// that was not graceful.
absl::Status shut_down_gracefully(const ShutdownParts& parts, absl::Time deadline);

}  // namespace gradwire::rpc
