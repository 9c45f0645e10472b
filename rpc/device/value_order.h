#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/stream_fence.h"

namespace gradwire::rpc {

// Orders the uses of a value behind an RRef on the streams of devices. Each call on the value may run on
// other streams. Its device work starts after that of the calls that had ended before it began. Thread-safe.
class ValueOrder {
 public:
  // For a value that was made by work on the current streams of this thread. nullptr if the process uses no
  // accelerator: then no order is needed.
  static std::shared_ptr<ValueOrder> make() {
    StreamFencePtr made = record_stream_fence();
    return made == nullptr ? nullptr : std::make_shared<ValueOrder>(std::move(made));
  }
  explicit ValueOrder(StreamFencePtr made) : ended_({std::move(made)}) {}

  // One use, from begin() to end().
  struct Use {
    std::shared_ptr<ValueOrder> order;
    std::vector<StreamFencePtr> waited_for;
  };
  // Makes the current streams of this thread wait for all uses that have ended.
  static absl::Status begin(std::shared_ptr<ValueOrder> order, Use& use) {
    {
      MutexLock lock(order->mutex_);
      use.waited_for = order->ended_;
    }
    use.order = std::move(order);
    absl::Status status;
    for (const StreamFencePtr& fence : use.waited_for) status.Update(fence->wait());
    return status;
  }
  // Later uses wait for what is on the current streams of this thread. The thread's streams are those of
  // begin(), or were made to wait for them.
  static void end(const Use& use) {
    StreamFencePtr fence = record_stream_fence();
    MutexLock lock(use.order->mutex_);
    // The new fence comes after those that this use has waited for. Those of uses that ran at the same time
    // stay.
    std::erase_if(use.order->ended_, [&](const StreamFencePtr& ended) {
      return std::find(use.waited_for.begin(), use.waited_for.end(), ended) != use.waited_for.end();
    });
    if (fence != nullptr) use.order->ended_.push_back(std::move(fence));
  }

  // The end of all uses so far.
  StreamFencePtr fence() const {
    MutexLock lock(mutex_);
    return join_fences(ended_);
  }

 private:
  mutable Mutex mutex_;
  std::vector<StreamFencePtr> ended_ ABSL_GUARDED_BY(mutex_);
};

// The uses of one handler. Thread-safe.
class ValueUses {
 public:
  // The handler uses a value: the current streams wait for the earlier uses of the value, and later ones wait
  // for this handler. `order` may be nullptr.
  absl::Status use(const std::shared_ptr<ValueOrder>& order) {
    if (order == nullptr) return absl::OkStatus();
    MutexLock lock(mutex_);
    for (const ValueOrder::Use& use : uses_) {
      if (use.order == order) return absl::OkStatus();
    }
    return ValueOrder::begin(order, uses_.emplace_back());
  }
  // The handler has ended; its streams are current.
  void end() {
    std::vector<ValueOrder::Use> uses;
    {
      MutexLock lock(mutex_);
      uses.swap(uses_);
    }
    for (const ValueOrder::Use& use : uses) ValueOrder::end(use);
  }

 private:
  Mutex mutex_;
  std::vector<ValueOrder::Use> uses_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
