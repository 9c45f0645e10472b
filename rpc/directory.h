#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "proto/membership.pb.h"
#include "rpc/worker.h"
#include "store/store.h"

namespace gradwire::rpc {

// A worker and where it listens.
struct WorkerAddress {
  Worker worker;
  proto::WorkerRecord record;
};

// The members of a job as the store knows them (proto/membership.proto). Used while an agent starts and
// stops; every call may block on the store. Thread-safe.
class Directory {
 public:
  explicit Directory(std::shared_ptr<store::Store> store) : store_(std::move(store)) {}

  // Claims the name and the id of `self` and waits until all ids below `world_size` are claimed; returns them
  // by id. InvalidArgument when the name or id is another's, or another member was started with another world
  // size; DeadlineExceeded naming the ids that did not come.
  absl::StatusOr<std::vector<WorkerAddress>> join(const Worker& self, int world_size,
                                                  const proto::WorkerRecord& record, absl::Duration timeout);

  // Gives back what join() claimed, and only that. The last to leave lets the world size go too.
  absl::Status leave();

  store::Store& store() { return *store_; }

 private:
  // Sets `key` unless somebody else has; returns what is there. What was set here leave() deletes.
  absl::StatusOr<std::string> claim(const std::string& key, const std::string& value, absl::Duration timeout);

  const std::shared_ptr<store::Store> store_;

  Mutex mutex_;
  bool counted_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> claimed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
