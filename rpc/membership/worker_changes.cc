#include "gradwire/rpc/membership/worker_changes.h"

#include <algorithm>
#include <iterator>

#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"

namespace gradwire::rpc {

WorkerChanges::WorkerChanges(const std::shared_ptr<Executor>& executor)
    : executor_(executor),
      strand_(std::make_shared<Strand>(executor)),
      subscribers_(std::make_shared<Subscribers>()) {}

std::shared_ptr<void> WorkerChanges::subscribe(Callback callback) {
  uint64_t number = 0;
  {
    MutexLock lock(subscribers_->mutex);
    number = subscribers_->next++;
    subscribers_->list.emplace(number, std::make_shared<const Callback>(std::move(callback)));
  }
  // The object holds only the list, and weakly: a subscription may be destroyed after the agent.
  return std::shared_ptr<void>(nullptr,
                               [subscribers = std::weak_ptr<Subscribers>(subscribers_), number](void*) {
                                 std::shared_ptr<Subscribers> alive = subscribers.lock();
                                 if (alive == nullptr) return;
                                 // Declared before the lock: the callback owns objects of the user, which are
                                 // destroyed after it is released.
                                 std::shared_ptr<const Callback> removed;
                                 MutexLock lock(alive->mutex);
                                 auto found = alive->list.find(number);
                                 removed = std::move(found->second);
                                 alive->list.erase(found);
                               });
}

void WorkerChanges::notify(const WorkerInfo& worker, WorkerState state) {
  strand_->post([subscribers = subscribers_, worker, state](Strand::Next next) {
    std::vector<std::pair<uint64_t, std::shared_ptr<const Callback>>> callbacks;
    {
      MutexLock lock(subscribers->mutex);
      // A copy: a callback may subscribe, or end a subscription, while the callbacks run.
      callbacks.assign(subscribers->list.begin(), subscribers->list.end());
    }
    // In the order of the subscriptions.
    std::sort(callbacks.begin(), callbacks.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [number, callback] : callbacks) {
      try {
        (*callback)(worker, state);
      } catch (...) {
        log(LogLevel::kWarning, "a callback of on_worker_change threw: ",
            status_from_exception(std::current_exception()).message());
      }
    }
    next();
  });
}

std::vector<WorkerChanges::Waiting> WorkerChanges::take_locked(const std::string& name) {
  auto end = std::partition(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    return waiting.first != name && !waiting.second.future().done();
  });
  std::vector<Waiting> taken(std::make_move_iterator(end), std::make_move_iterator(waiting_.end()));
  waiting_.erase(end, waiting_.end());
  return taken;
}

Future<WorkerInfo> WorkerChanges::wait_for(const std::string& name) {
  Promise<WorkerInfo> promise(executor_);
  absl::Status failed;
  // Cancelled waits are removed here, so that waits which are given up again and again do not pile up. They
  // are destroyed after the lock is released.
  std::vector<Waiting> cancelled;
  {
    MutexLock lock(mutex_);
    cancelled = take_locked("");
    // In the same critical section as the entry into the list. A fail() that comes before is seen here, and
    // one that comes after finds the entry.
    failed = failed_;
    if (failed.ok()) waiting_.emplace_back(name, promise);
  }
  if (!failed.ok()) promise.set_error(failed);
  return promise.future();
}

void WorkerChanges::joined(const WorkerInfo& worker) {
  std::vector<Waiting> taken;
  {
    MutexLock lock(mutex_);
    taken = take_locked(worker.name);
  }
  for (const auto& [name, promise] : taken) {
    if (name == worker.name) promise.set_value(worker);
  }
}

std::size_t WorkerChanges::waiting() const {
  MutexLock lock(mutex_);
  return waiting_.size();
}

void WorkerChanges::fail(const absl::Status& reason, bool permanently) {
  std::vector<Waiting> waiting;
  {
    MutexLock lock(mutex_);
    if (permanently) failed_ = reason;
    waiting.swap(waiting_);
  }
  for (const auto& [name, promise] : waiting) promise.set_error(reason);
}

}  // namespace gradwire::rpc
