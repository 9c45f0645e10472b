#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/stream_fence.h"

// The state that a Future and its Promise share. Internal to base/future.h.
namespace gradwire::future_internal {

template <class T>
struct ResultOf {
  using type = absl::StatusOr<T>;
};
template <>
struct ResultOf<void> {
  using type = absl::Status;
};
template <class T>
using Result = typename ResultOf<T>::type;

// Whether `T t(values...)` compiles; for void, whether there are no values.
template <class T, class... V>
inline constexpr bool kInitialises = std::is_constructible_v<T, V...>;
template <class... V>
inline constexpr bool kInitialises<void, V...> = sizeof...(V) == 0;

inline const absl::Status& status_of(const absl::Status& status) { return status; }
template <class T>
const absl::Status& status_of(const absl::StatusOr<T>& result) {
  return result.status();
}

// The return type of a function that is given to then(). The function takes the result if kTakesResult, else
// the value.
template <class T, class F, bool kTakesResult>
struct ThenCall {
  using Returned = std::remove_cvref_t<std::invoke_result_t<F&, const Result<T>&>>;
};
template <class T, class F>
struct ThenCall<T, F, false> {
  using Returned = std::remove_cvref_t<std::invoke_result_t<F&, const T&>>;
};
template <class F>
struct ThenCall<void, F, false> {
  using Returned = std::remove_cvref_t<std::invoke_result_t<F&>>;
};

// Logs the exception that is being handled. It was thrown by user code whose result nobody reads.
void report_stray_exception(const char* where);

// The part of the state that does not depend on T.
class StateBase {
 public:
  explicit StateBase(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Waits until the result is available, at most `timeout`. DeadlineExceeded after `timeout`;
  // ResourceExhausted if this thread must not wait (see ThreadPool).
  absl::Status wait(absl::Duration timeout);
  void on_cancel(absl::AnyInvocable<void()> handler);
  const std::shared_ptr<Executor>& executor() const { return executor_; }

 protected:
  using Callback = absl::AnyInvocable<void()>;

  // Claims the right to complete the future. A second claim fails. It is counted, unless the future was
  // cancelled.
  bool claim();
  // Publishes the result that the claimant has stored and runs the callbacks.
  void publish();
  // Runs `callback` when the future is done; at once if it already is.
  void attach(Callback callback);
  // Runs the cancel handler, if one is set and the future is not done.
  void run_cancel_handler();

  const std::shared_ptr<Executor> executor_;
  mutable Mutex mutex_;
  CondVar done_changed_;
  bool claimed_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> done_{false};  // Set under mutex_.
  std::vector<Callback> callbacks_ ABSL_GUARDED_BY(mutex_);
  Callback cancel_handler_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

template <class T>
class State : public StateBase, public std::enable_shared_from_this<State<T>> {
 public:
  using StateBase::StateBase;

  // Returns false and drops the result if the future was already complete. The value is ordered after what
  // the calling thread has enqueued on its current streams.
  bool complete(Result<T> result) {
    StreamFencePtr fence;
    if constexpr (!std::is_void_v<T>) {
      if (result.ok()) fence = record_stream_fence_of(*result);
    }
    return emplace(std::move(result), std::move(fence));
  }
  // As above, but the value is ordered after `fence`, which may be nullptr.
  bool complete(Result<T> result, StreamFencePtr fence) {
    return emplace(std::move(result), std::move(fence));
  }
  bool fail(absl::Status status) { return emplace(std::move(status), nullptr); }

  void abandon() {
    if (!done()) complete_quietly(absl::CancelledError("the promise was dropped without a result"));
  }

  void cancel() {
    run_cancel_handler();
    complete_quietly(absl::CancelledError("cancelled by the caller"));
  }

  // REQUIRES: done()
  const Result<T>& result() const { return *result_; }
  // The value is moved out of the result. REQUIRES: done(), and nobody else reads the result.
  Result<T> take_result() { return *std::move(result_); }
  // Makes the current streams of the calling thread wait for the value. REQUIRES: done()
  absl::Status order() const { return fence_ == nullptr ? absl::OkStatus() : fence_->wait(); }

  using InlineCallback = absl::AnyInvocable<void(const Result<T>&, const StreamFencePtr&)>;
  // The callback also gets the fence of the value. It orders no streams by itself, because it runs on the
  // thread that completes the promise, whose streams are not those of the user.
  void on_ready_inline(InlineCallback function) {
    attach([self = this->shared_from_this(), function = std::move(function)]() mutable {
      function(self->result(), self->fence_);
    });
  }

  void on_ready(absl::AnyInvocable<void(const Result<T>&)> function) {
    // The callback around this one holds the state until this one has run, so lock() below succeeds. A
    // shared_ptr here would only add cost.
    on_ready_inline([executor = executor_, state = ExecutionState::capture(), function = std::move(function),
                     self = this->weak_from_this()](const Result<T>&, const StreamFencePtr&) mutable {
      Executor::Task task = [state = std::move(state), function = std::move(function),
                             self = self.lock()]() mutable {
        ScopedExecutionState scope(state);
        if (const absl::Status ordered = self->order(); ordered.ok()) {
          function(self->result());
        } else {
          function(Result<T>(ordered));
        }
        function = nullptr;
        self = nullptr;
      };
      if (executor == nullptr || !executor->post_clean(task)) task();
    });
  }

 private:
  template <class R>
  bool emplace(R&& result, StreamFencePtr fence) {
    if (!claim()) return false;
    // A waiter may drop the promise, and with it the last reference, as soon as it sees the result.
    const std::shared_ptr<State> self = this->shared_from_this();
    result_.emplace(std::forward<R>(result));
    fence_ = std::move(fence);
    publish();
    return true;
  }
  // As complete(), but a call on a complete future is not counted.
  void complete_quietly(absl::Status status) {
    {
      MutexLock lock(mutex_);
      if (claimed_) return;
      claimed_ = true;
    }
    const std::shared_ptr<State> self = this->weak_from_this().lock();
    result_.emplace(std::move(status));
    publish();
  }

  // Written by the thread that claimed, before it sets done_. Read only by threads that have seen done_.
  std::optional<Result<T>> result_;
  // The point in the streams of the producer after which the value may be read; nullptr: at once. Written as
  // result_.
  StreamFencePtr fence_;
};

}  // namespace gradwire::future_internal
