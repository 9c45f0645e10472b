#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/rpc/agent/membership_driver.h"
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
  MembershipDriver& membership;
};

// Runs one graceful shutdown of an agent, up to the point where everything may be stopped. The members agree
// in rounds over the store:
//
//   1. Wait until this worker has no work in progress. In an open group the shutdown refuses new calls
//      meanwhile (ServedCalls::leave), and ends here.
//   2. Write a report of this round: how many calls this worker has ever sent, and whether it is idle. Then
//      read the reports of all other members for the same round. While a report is missing, ping its member.
//      Fail if any member is lost.
//   3. Repeat until two successive rounds have the same total of calls, and all members were idle in both.
//   4. After a failure, find the member whose end caused it. The first failure is shared in the store, so
//      that all members name the same one.
//   5. Leave the group, and wait until the others have left, too.
//
// Two equal rounds are enough. Consider the moment when the last report of the first round was written. If a
// call was in progress then, its sender either was not idle in the first round, or has counted the call
// between the rounds. Both contradict the two equal rounds. All members read the same reports, so all decide
// alike.
//
// Errors: DeadlineExceeded, which names the work in progress or the member that has not called shutdown;
// Unavailable if a member or the store was lost; Aborted if the group has declared this worker dead;
// FailedPrecondition after a shutdown that was not graceful.
absl::Status shut_down_gracefully(const ShutdownParts& parts, absl::Time deadline);

}  // namespace gradwire::rpc
