#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/agent/membership.h"
#include "gradwire/rpc/callee/served_calls.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/membership/shutdown_wait.h"
#include "gradwire/rpc/membership/store_silence.h"

namespace gradwire::rpc {

// One graceful shutdown of an agent, up to the moment when everything may stop. All members agree first, in
// rounds over the store:
//
//   1. Wait until nothing of one's own is under way. For an open group that is all.
//   2. Write how many calls this worker has ever sent, and read what the others wrote in the same round. While
//      a report is missing, ping the member that owes it, and end when any member has been lost.
//   3. Repeat until two rounds in a row say the same and all were idle.
//   4. After a failure, find the member whose end was the cause. The first failure is shared, so that all
//      members name the same one.
//   5. Leave the group, and wait until the others have left too.
//
// Two equal rounds are enough: at the moment when the last report of the first one was written nothing can have
// been under way, since whoever had sent it would not have been idle before, or would have counted it after.
// Everybody reads the same reports and so everybody decides alike.
//
// Used by one thread. What it is given outlives it.
class GracefulShutdown {
 public:
  struct Parts {
    AgentRuntime& runtime;
    Peers& peers;
    RRefService& rrefs;
    Caller& caller;
    ServedCalls& served;
    Membership& membership;
  };
  GracefulShutdown(const Parts& parts, absl::Time deadline);

  // Errors: DeadlineExceeded, with what is under way or who has not come; Unavailable, when a member or the
  // store was lost; Aborted, when the group has given this worker up; FailedPrecondition after a shutdown
  // that was not graceful.
  absl::Status run();

 private:
  // Nothing under way that the shutdown would wait for.
  bool idle() const;
  // What idle() waits for.
  std::vector<ShutdownWait::Unfinished> unfinished() const;
  absl::Status finish_own_work();
  absl::Status agree_in_rounds();
  // Both try again while the store is merely silent; Unavailable when it is lost.
  absl::Status write_report(const std::string& key, const proto::ShutdownReport& report);
  absl::StatusOr<proto::ShutdownReport> read_report(const std::string& key, const Worker& worker);
  absl::Status store_unanswered(absl::Time began);
  // Unavailable may be due to a member that died with the store that it hosted: finds that one.
  absl::Status name_the_dead(absl::Status status);
  absl::Status share_failure(absl::Status status);
  absl::Status leave_together();
  store::Store& store() const { return parts_.membership.directory()->store(); }

  const Parts parts_;
  const Worker& self_;
  const absl::Time deadline_;
  const std::vector<Worker> members_;
  // Of the keys in the store. The incarnations tell this group from earlier ones in the same store.
  std::string prefix_;
  // Over all calls to the store that this shutdown makes.
  StoreSilence silence_;
  ShutdownWait wait_;
};

}  // namespace gradwire::rpc
