#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/proto/membership.pb.h"

namespace gradwire::inspect {

// One worker as an observer knows it.
struct WorkerView {
  proto::WorkerRecord record;
  enum class Standing : uint8_t { kMember, kDead, kLeft };
  Standing standing = Standing::kMember;
  // Why the group lost it.
  std::string reason;
  // Why it did not describe its state; OK if it did.
  absl::Status status;
  proto::AgentState state;
  // When the worker was asked for it, and when the answer came, by the wall clock of the observer.
  absl::Time asked = absl::InfinitePast();
  absl::Time answered_at = absl::InfinitePast();
  // The worker did not answer, but its process runs on the host of the observer and is stopped by a signal or
  // a debugger: its process id. 0 otherwise.
  int64_t stopped_pid = 0;

  bool is_member() const { return standing == Standing::kMember; }
  bool answered() const { return is_member() && status.ok(); }
};

// A job as an observer knows it at one time. The states of the workers were read one after the other.
struct JobView {
  // The group's place in the store.
  std::string group;
  absl::Time time;
  // Members in the order of their ids, then workers that were lost.
  std::vector<WorkerView> workers;

  // nullptr for a worker that is not in the view.
  const WorkerView* find(uint64_t incarnation) const {
    for (const WorkerView& worker : workers) {
      if (worker.record.incarnation() == incarnation) return &worker;
    }
    return nullptr;
  }
  // The name in quotes, or "an unknown worker".
  std::string name_of(uint64_t incarnation) const {
    const WorkerView* worker = find(incarnation);
    return worker == nullptr ? "an unknown worker" : '"' + worker->record.name() + '"';
  }
};

}  // namespace gradwire::inspect
