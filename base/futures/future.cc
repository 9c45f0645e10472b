#include "gradwire/base/futures/future.h"

#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/threads/nested_callbacks.h"

namespace gradwire {
namespace {

std::atomic<uint64_t> ignored{0};

}  // namespace

uint64_t ignored_completions() { return ignored.load(); }

// The promise and the futures refer to each other: the futures' callbacks own the promise, and its cancel
// handler owns the futures. The cycle ends when the promise is completed, because publish() drops the
// cancel handler.
Future<void> collect(std::vector<Future<void>> futures) {
  struct Progress {
    std::atomic<std::size_t> missing;
    std::atomic<bool> failed;
  };
  Promise<void> promise(futures.empty() ? nullptr : futures.front().executor());
  if (futures.empty()) promise.set_value();
  auto progress = std::make_shared<Progress>();
  progress->missing = futures.size();
  for (const Future<void>& future : futures) {
    future.on_ready_inline([promise, progress](const absl::Status& status) {
      if (!status.ok()) {
        // A failed future is not subtracted, so `missing` does not reach 0 and the promise cannot be
        // completed twice.
        if (!progress->failed.exchange(true)) promise.set_error(status);
      } else if (progress->missing.fetch_sub(1) == 1) {
        promise.set_value();
      }
    });
  }
  promise.on_cancel([futures = std::move(futures)] {
    for (const Future<void>& future : futures) future.cancel();
  });
  return promise.future();
}

namespace future_internal {

const absl::Status& StateBase::kTaken = *new absl::Status(absl::CancelledError("the result was taken"));
const absl::Status& StateBase::kDropped =
    *new absl::Status(absl::CancelledError("the promise was dropped without a result"));
const absl::Status& StateBase::kCancelled =
    *new absl::Status(absl::CancelledError("cancelled by the caller"));

void call_contained(const char* what, absl::FunctionRef<void()> function) noexcept {
  run_contained(what, function);
}

// Waits in four steps:
// 1. Run the callbacks that this thread has deferred (base/threads/nested_callbacks.h).
// 2. Notify the executor that this thread blocks, so that another thread can run the tasks that lead to the
//    completion.
// 3. Drive the executor's poller for a while: the answer may be the next message that arrives.
// 4. Sleep until publish() notifies.
absl::Status StateBase::wait(absl::Duration timeout) {
  if (done()) return absl::OkStatus();
  GRADWIRE_RETURN_IF_ERROR(mark_.check("the future"));
  run_deferred_callbacks();
  if (done()) return absl::OkStatus();
  BlockingScope blocking(executor_.get());
  if (!blocking.status().ok()) return blocking.status();
  const absl::Time deadline =
      timeout == absl::InfiniteDuration() ? absl::InfiniteFuture() : Clock::system().now() + timeout;
  // The completion may depend on data that a poller has yet to receive, so this thread drives the poller
  // before it sleeps.
  if (executor_ != nullptr && timeout > absl::ZeroDuration() && executor_->drive_until(done_, deadline)) {
    return absl::OkStatus();
  }
  MutexLock lock(mutex_);
  while (!done_) {
    absl::Duration left = deadline - Clock::system().now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("the future is not done yet");
    done_changed_.wait_for(mutex_, left);
  }
  return absl::OkStatus();
}

// Completion has two steps, so that the result can be written without the lock: claim() chooses one thread;
// this thread writes the result and then calls publish().
// A completion that comes after the first one is ignored. It is counted, unless the future was cancelled:
// then a late completion is normal.
bool StateBase::claim() {
  if (!mark_.here()) return false;
  MutexLock lock(mutex_);
  if (claimed_ && !cancelled_) ignored.fetch_add(1);
  return !std::exchange(claimed_, true);
}

bool StateBase::claim_quietly() {
  if (!mark_.here()) return false;
  MutexLock lock(mutex_);
  return !std::exchange(claimed_, true);
}

// Waking and attaching cannot miss the completion: wait() checks `done_`, and attach() decides whether to
// queue its callback, under the lock under which `done_` is set here. Threads that call done() without the
// lock see the result, because it was written before `done_` was set.
void StateBase::publish() noexcept {
  std::vector<Callback> callbacks;
  Callback cancel_handler;
  {
    MutexLock lock(mutex_);
    done_ = true;
    callbacks.swap(callbacks_);
    cancel_handler = std::move(cancel_handler_);
    cancel_handler_ = nullptr;
    done_changed_.notify_all();
  }
  // Callbacks and the objects that they own belong to users: run and destroy them without the lock.
  cancel_handler = nullptr;
  for (Callback& callback : callbacks) run_nested(std::move(callback), "a callback of a future");
}

void StateBase::attach(Callback callback) {
  if (!done()) {
    if (!mark_.here()) return;  // It will never run.
    MutexLock lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  run_nested(std::move(callback), "a callback of a future");
}

void StateBase::on_cancel(Callback handler) {
  if (!mark_.here()) return;
  {
    MutexLock lock(mutex_);
    if (done_) return;
    if (!cancelled_) {
      // The previous handler is now in `handler` and is destroyed after the lock is released.
      std::swap(cancel_handler_, handler);
      return;
    }
  }
  // The cancellation came first.
  run_nested(std::move(handler), "a cancel handler");
}

void StateBase::run_cancel_handler() {
  if (!mark_.here()) return;
  Callback handler;
  {
    MutexLock lock(mutex_);
    // Only the first cancel() finds the handler. After the completion a cancel has no effect.
    if (done_ || cancelled_) return;
    cancelled_ = true;
    handler = std::move(cancel_handler_);
    cancel_handler_ = nullptr;
  }
  if (handler) run_nested(std::move(handler), "a cancel handler");
}

}  // namespace future_internal
}  // namespace gradwire
