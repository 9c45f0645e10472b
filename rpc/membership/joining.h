#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/membership/group_log.h"

namespace gradwire::rpc {

// A worker and its record with the addresses where it listens.
struct WorkerAddress {
  Worker worker;
  proto::WorkerRecord record;
};

// Makes one worker a member of its group, by reading and writing the group's log. The operation runs once.
// Directory::join() describes its errors. Not thread-safe. The log must outlive this object, and must not be
// used by others until run() returns.
class Joining {
 public:
  // Finds out whether the worker that wrote a record is alive. May block for up to `timeout`.
  enum class Life { kAlive, kDead, kUnknown };
  using Probe = std::function<Life(const proto::WorkerRecord& record, absl::Duration timeout)>;

  struct Group {
    // This worker, with the assigned id if it was -1.
    Worker self;
    // All members in the order of their ids, including this worker.
    std::vector<WorkerAddress> members;
    // Workers that are dead or have left.
    std::vector<Worker> gone;
  };
  struct Options {
    Worker self;
    int world_size = 0;
    absl::Duration timeout;
    Probe probe;
    // Where it is shown which ranks are missing.
    Progress::Target progress = {};
  };

  Joining(GroupLog& log, Options options);

  absl::StatusOr<Group> run(proto::WorkerRecord record);
  // Call after run(), also if it failed. Whether the log says that this worker is a member.
  bool entered() const { return entered_; }

 private:
  // Appends this worker's Join, after every conflict with other members is resolved.
  absl::Status enter(const proto::LogLine& line);
  // Handles the conflict with the member that has this worker's name or id, or another world size.
  absl::Status resolve_conflict(const Roster::Change& refused);
  // Call if this worker cannot join because of a live member. Writes a Refusal for the workers that wait for
  // this one, unless the group is complete. Returns the error of this worker.
  absl::Status refuse(const std::string& conflict);
  // Whether the group failed to form before this worker came, and this worker has not been informed yet.
  bool is_late() const;
  // If is_late(), writes into the log that this worker is informed, so that its next attempt begins anew, and
  // returns the reason of the refusal as an error.
  absl::Status acknowledge_refusal();
  // Waits until the refused members have left, so that they can read the reason before this worker exits. The
  // store may end with this worker's process.
  void wait_until_refused_leave();
  // Reads the log until the group is complete.
  absl::Status wait_for_all();
  // The ids that are not members of the group yet.
  std::vector<int> missing() const;
  // The state of the wait, for a report. In a log only the member with the lowest id reports it: the others
  // would write the same.
  std::optional<ProgressState> describe_wait() const;
  void record_event(const GroupLog::Event& event);
  // Appends the line if want() is still true when it is written.
  template <class Want>
  absl::Status append(const proto::LogLine& line, absl::Duration timeout, Want want) {
    return log_.append(
        line, timeout, [this](const GroupLog::Event& event) { record_event(event); }, want);
  }

  GroupLog& log_;
  const Options options_;
  const absl::Time deadline_;
  // The entry of this worker. The log may assign the id.
  RosterEntry entry_;
  bool entered_ = false;
  // Records of the members, by incarnation.
  HashMap<uint64_t, proto::WorkerRecord> records_;
  std::vector<Worker> gone_;
  // The last refusal; empty again when a worker joins after it.
  proto::Refusal refusal_;
};

}  // namespace gradwire::rpc
