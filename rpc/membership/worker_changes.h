#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/strand.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

// The subscribers to changes in the group. Thread-safe. Subscriptions may outlive it.
class WorkerChanges {
 public:
  using Callback = std::function<void(const WorkerInfo& worker, WorkerState state)>;

  explicit WorkerChanges(const std::shared_ptr<Executor>& executor);

  // Until what is returned goes. A call under way then still ends.
  std::shared_ptr<void> subscribe(Callback callback);
  // Calls every subscriber, in the order of the notifications, one at a time, on the executor.
  void notify(const WorkerInfo& worker, WorkerState state);

  // Completes when a worker of that name is announced by joined(), or with fail()'s status.
  Future<WorkerInfo> wait_for(const std::string& name);
  void joined(const WorkerInfo& worker);
  // `for_good`: also who begins to wait later.
  void fail(const absl::Status& reason, bool for_good);
  // The number of waits, those given up since the last change included.
  std::size_t waiting() const;

 private:
  using Waiting = std::pair<std::string, Promise<WorkerInfo>>;
  struct Subscribers {
    Mutex mutex;
    uint64_t next ABSL_GUARDED_BY(mutex) = 1;
    absl::flat_hash_map<uint64_t, std::shared_ptr<const Callback>> list ABSL_GUARDED_BY(mutex);
  };

  // Takes out who waits for `name`, and who gave up waiting; their promises go outside the lock.
  std::vector<Waiting> take_locked(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Executor> executor_;
  const std::shared_ptr<Strand> strand_;
  const std::shared_ptr<Subscribers> subscribers_;
  mutable Mutex mutex_;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
