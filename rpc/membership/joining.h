#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/membership/group_log.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

// A worker and where it listens.
struct WorkerAddress {
  Worker worker;
  proto::WorkerRecord record;
};

// How one worker becomes a member of its group: an operation that runs once, by reading and writing the
// group's log. Directory::join describes its errors. Not thread-safe; the log must outlive it, and is nobody
// else's meanwhile.
class Joining {
 public:
  // Whether the worker that wrote a record still lives, which takes up to the time given.
  enum class Life { kAlive, kDead, kUnknown };
  using Probe = std::function<Life(const proto::WorkerRecord& record, absl::Duration timeout)>;

  struct Group {
    // Oneself, the id assigned if it was -1.
    Worker self;
    // By id, oneself included.
    std::vector<WorkerAddress> members;
    // Incarnations that are dead or have left.
    std::vector<Worker> gone;
  };
  struct Options {
    Worker self;
    int world_size = 0;
    absl::Duration timeout;
    Probe probe;
  };

  Joining(GroupLog& log, Options options);

  absl::StatusOr<Group> run(proto::WorkerRecord record);
  // After run(), also one that failed: whether the log says that this worker is a member, and nobody has made
  // it leave.
  bool entered() const { return entered_; }

 private:
  absl::Status enter(const proto::LogLine& line);
  absl::Status make_way(const Roster::Change& refused);
  // This worker cannot join, since a live member is in the way: reports it to those who wait for this worker,
  // unless the group is complete.
  absl::Status refuse(const std::string& conflict);
  // Whether the group that this worker was to be in has been found unable to form before this one came.
  bool comes_late() const;
  // If so, writes into the log that this one knows now, so that its next attempt begins anew, and returns the
  // reason.
  absl::Status hear_refusal();
  // Gives the refused members the time to read why, before this worker goes and perhaps the store with it.
  void wait_until_heard();
  absl::Status wait_for_all();
  void note(const GroupLog::Event& event);
  // Appends the line if it is still wanted then.
  template <class Want>
  absl::Status append(const proto::LogLine& line, absl::Duration timeout, Want want) {
    return log_.append(
        line, timeout, [this](const GroupLog::Event& event) { note(event); }, want);
  }

  GroupLog& log_;
  const Options options_;
  const absl::Time deadline_;
  // As the log is to have it: the id may be assigned there.
  RosterEntry entry_;
  bool entered_ = false;
  // The records of members by incarnation, and who is gone.
  absl::flat_hash_map<uint64_t, proto::WorkerRecord> records_;
  std::vector<Worker> gone_;
  // The last one, until somebody joins after it.
  proto::Refusal refusal_;
};

}  // namespace gradwire::rpc
