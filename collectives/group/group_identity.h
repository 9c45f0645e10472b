#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/collectives/flight/coarse_clock.h"
#include "gradwire/collectives/flight/flight_recorder.h"
#include "gradwire/collectives/flight/group_metrics.h"
#include "gradwire/collectives/flight/operation.h"

namespace gradwire::collectives {

// The name, ranks and flight record of one member of a group. Shared with callbacks that may outlive the
// group. Thread-safe.
struct GroupIdentity {
  GroupIdentity(std::string name, int rank, std::vector<int> ranks, bool is_world);

  const std::string name;
  // This process's rank in the group.
  const int rank;
  // The members' ranks in the world, by their rank in the group.
  const std::vector<int> ranks;
  const bool is_world;

  // Records the end of an operation and returns its status. For an error, the operation, the group and the
  // rank are put in front of the message, and the ranks in the world behind it. The first timeout writes the
  // flight record to the log. `began`: when the operation began.
  absl::Status end(const OperationRecord& record, uint64_t sequence, uint64_t entry, CoarseTime began,
                   absl::Status status);

  FlightRecorder recorder;
  GroupMetrics metrics;

 private:
  absl::Status failed(const OperationRecord& record, uint64_t sequence, uint64_t entry,
                      const absl::Status& status);
  // For messages, for example: all_reduce #12 of group "world" (rank 1 of 4)
  std::string name_call(const OperationRecord& record, uint64_t sequence) const;

  std::atomic<bool> dumped_{false};
};

inline absl::Status GroupIdentity::end(const OperationRecord& record, uint64_t sequence, uint64_t entry,
                                       CoarseTime began, absl::Status status) {
  const CoarseTime now = coarse_now();
  metrics.ended(record, now - began, status.ok());
  if (!status.ok()) return failed(record, sequence, entry, status);
  recorder.set_state(entry, FlightRecorder::State::kDone, now);
  return status;
}

}  // namespace gradwire::collectives
