#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/strand.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::rpc {

// Subscriptions to the changes of the group, and waits for workers to join. Thread-safe. Subscriptions may
// outlive this object.
class WorkerChanges {
 public:
  using Callback = std::function<void(const WorkerInfo& worker, WorkerState state)>;

  explicit WorkerChanges(const std::shared_ptr<Executor>& executor);

  // Subscribes until the returned object is destroyed. A callback that is running then still ends.
  std::shared_ptr<void> subscribe(Callback callback);
  // Calls every subscriber on the executor, one after the other, in the order of the notifications.
  void notify(const WorkerInfo& worker, WorkerState state);

  // Completes when joined() announces a worker with this name, or with the error of fail().
  Future<WorkerInfo> wait_for(const std::string& name);
  void joined(const WorkerInfo& worker);
  // Fails all waits. `permanently`: also every later wait.
  void fail(const absl::Status& reason, bool permanently);
  // Number of waits. Cancelled waits are counted until the next change.
  std::size_t waiting() const;

 private:
  using Waiting = std::pair<std::string, Promise<WorkerInfo>>;
  struct Subscribers {
    Mutex mutex;
    uint64_t next ABSL_GUARDED_BY(mutex) = 1;
    HashMap<uint64_t, std::shared_ptr<const Callback>> list ABSL_GUARDED_BY(mutex);
  };

  // Removes and returns the waits for `name` and the cancelled waits. The caller must complete and destroy
  // their promises without the lock.
  std::vector<Waiting> take_locked(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Executor> executor_;
  const std::shared_ptr<Strand> strand_;
  const std::shared_ptr<Subscribers> subscribers_;
  mutable Mutex mutex_;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
