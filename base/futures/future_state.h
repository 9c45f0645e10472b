#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/stream_fence.h"

// The state that a Future and its Promise share. Internal to base/futures/future.h.
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

// Constructs a result from another one. A StatusOr must not be moved as a whole: Abseil declares that this
// never throws, so a value whose move or copy throws would end the process.
template <class R>
void store(std::optional<absl::Status>& to, R&& from) {
  to.emplace(std::forward<R>(from));
}
template <class T>
void store(std::optional<absl::StatusOr<T>>& to, absl::StatusOr<T>&& from) {
  if (from.ok()) {
    to.emplace(absl::in_place, *std::move(from));
  } else {
    to.emplace(std::move(from).status());
  }
}
template <class T, class... V>
void store(std::optional<absl::StatusOr<T>>& to, V&&... values) {
  to.emplace(std::forward<V>(values)...);
}

// The same at the end of a vector. REQUIRES: the vector has room.
inline void append(std::vector<absl::Status>& to, absl::Status&& from) { to.push_back(std::move(from)); }
template <class T>
void append(std::vector<absl::StatusOr<T>>& to, absl::StatusOr<T>&& from) {
  if (from.ok()) {
    to.emplace_back(absl::in_place, *std::move(from));
  } else {
    to.emplace_back(std::move(from).status());
  }
}

// Moves the value out of a result.
inline absl::Status take(absl::Status&& status) { return std::move(status); }
template <class T>
absl::StatusOr<T> take(absl::StatusOr<T>&& result) {
  if (!result.ok()) return std::move(result).status();
  return absl::StatusOr<T>(absl::in_place, *std::move(result));
}

// Calls a function of the program for whose outcome nobody waits. Logs its exception.
void call_contained(const char* what, absl::FunctionRef<void()> function) noexcept;

// A result that the thread that reads it first makes. So the thread that completes the future, which may
// drive an event loop, runs no code of a user's type.
template <class T>
class LazyResult {
 public:
  virtual ~LazyResult() = default;

  const Result<T>& get() {
    std::call_once(made_, [this] {
      try {
        make(result_);
      } catch (...) {
        result_.emplace(status_from_exception(std::current_exception()));
      }
    });
    return *result_;
  }
  // REQUIRES: nobody else reads the result, and this object is destroyed next. A value whose type has no move
  // constructor is copied, and the original ends with this object.
  Result<T> take() {
    get();
    return future_internal::take(*std::move(result_));
  }
  // Destroys the value, on a thread that may run code of users.
  virtual void destroy() { result_.reset(); }

 private:
  // Stores the result. Called once. An exception becomes the error of the future.
  virtual void make(std::optional<Result<T>>& result) = 0;

  std::once_flag made_;
  std::optional<Result<T>> result_;
};

// The part of the state that does not depend on T.
//
// Nothing here throws: an exception of a callback, or of a copy of the value, would otherwise reach the
// thread that completes the future, which may be one that drives the event loop.
class StateBase {
 public:
  explicit StateBase(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Waits until the result is available, at most `timeout`. DeadlineExceeded after `timeout`;
  // ResourceExhausted if this thread must not wait (see ThreadPool). FailedPrecondition in a forked child,
  // where nobody completes the future.
  absl::Status wait(absl::Duration timeout);
  void on_cancel(absl::AnyInvocable<void()> handler);
  const std::shared_ptr<Executor>& executor() const { return executor_; }
  // The executor of callbacks that are attached now, or nullptr.
  std::shared_ptr<Executor> callback_executor() const {
    return executor_ != nullptr ? executor_ : adopted_executor();
  }

 protected:
  using Callback = absl::AnyInvocable<void()>;

  // Claims the right to complete the future. A second claim fails. It is counted, unless the future was
  // cancelled.
  bool claim();
  // As claim(), but a second claim is not counted.
  bool claim_quietly();
  // Publishes the result that the claimant has stored and runs the callbacks.
  void publish() noexcept;
  // Runs `callback` when the future is done; at once if it already is.
  void attach(Callback callback);
  // Runs the cancel handler, if one is set and the future is not done.
  void run_cancel_handler();

  // The errors of futures that end without a result. Made before memory is short.
  static const absl::Status& kDropped;
  static const absl::Status& kCancelled;
  // The result of a future whose value was moved out.
  static const absl::Status& kTaken;

  const std::shared_ptr<Executor> executor_;
  const ProcessMark mark_;
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
  ~State() {
    // The value of a lazy result may be destroyed only where it could be made.
    if (lazy_ == nullptr || executor_ == nullptr) return;
    call_contained("the end of a result", [this] {
      executor_->run_off_duty([lazy = std::move(lazy_)]() mutable {
        lazy->destroy();
        lazy = nullptr;
      });
    });
  }

  // Completes the future with `Result<T>(values...)`. An exception of the constructor becomes the error.
  // Returns false, and constructs nothing, if the future was already complete. The value is ordered after
  // what the calling thread has enqueued on its current streams.
  template <class... V>
  bool complete(V&&... values) {
    return complete_by([&] {
      store(result_, std::forward<V>(values)...);
      if constexpr (!std::is_void_v<T>) {
        if (result_->ok()) fence_ = record_stream_fence_of(**result_);
      }
    });
  }
  // The same, but the value is ordered after `fence`, which may be nullptr.
  template <class... V>
  bool complete_after(StreamFencePtr fence, V&&... values) {
    return complete_by([&] {
      store(result_, std::forward<V>(values)...);
      fence_ = std::move(fence);
    });
  }
  // Completes the future with the result of another one, which is done. The value is not copied.
  bool complete_as(const std::shared_ptr<const State>& other) {
    return complete_by([&] {
      // Not `other` itself, so that a long chain of futures has a result at a distance of one.
      same_as_ = other->same_as_ == nullptr ? other : other->same_as_;
      fence_ = same_as_->fence_;
    });
  }
  // Completes the future with a result that is made when it is first read. `fence` as above.
  bool complete_lazily(std::unique_ptr<LazyResult<T>> lazy, StreamFencePtr fence) {
    return complete_by([&] {
      lazy_ = std::move(lazy);
      fence_ = std::move(fence);
    });
  }
  bool fail(absl::Status status) { return complete_after(nullptr, std::move(status)); }

  void abandon() {
    if (!done()) complete_quietly(kDropped);
  }

  void cancel() {
    run_cancel_handler();
    complete_quietly(kCancelled);
  }

  // REQUIRES: done()
  const Result<T>& result() const {
    if (same_as_ != nullptr) return same_as_->result();
    return lazy_ != nullptr ? lazy_->get() : *result_;
  }
  // The value is moved out of the result. REQUIRES: done(), the result is not that of another future, and
  // nobody else reads it.
  Result<T> take_result() {
    if (lazy_ == nullptr) return future_internal::take(*std::move(result_));
    const std::unique_ptr<LazyResult<T>> lazy = std::move(lazy_);
    result_.emplace(StateBase::kTaken);
    return lazy->take();
  }
  // The error of a result that needs not be made first. REQUIRES: done()
  absl::Status known_error() const {
    if (same_as_ != nullptr) return same_as_->known_error();
    return lazy_ != nullptr ? absl::OkStatus() : status_of(*result_);
  }
  // Makes the current streams of the calling thread wait for the value. REQUIRES: done()
  absl::Status order() const { return fence_ == nullptr ? absl::OkStatus() : fence_->wait(); }
  // REQUIRES: done()
  const StreamFencePtr& fence() const { return fence_; }

  using InlineCallback = absl::AnyInvocable<void(const Result<T>&, const StreamFencePtr&)>;
  // The callback also gets the fence of the value. It orders no streams by itself, because it runs on the
  // thread that completes the promise, whose streams are not those of the user.
  void on_ready_inline(InlineCallback function) {
    attach([self = this->shared_from_this(), function = std::move(function)]() mutable {
      function(self->result(), self->fence_);
    });
  }
  // As above, without the result: for values of users, which the completing thread must not read.
  void on_done_inline(absl::AnyInvocable<void()> function) { attach(std::move(function)); }

  void on_ready(absl::AnyInvocable<void(const Result<T>&)> function) {
    // Made here, so that the completion needs no memory for it.
    Executor::Task task = [state = ExecutionState::capture(), function = std::move(function),
                           self = this->shared_from_this()]() mutable {
      ScopedExecutionState scope(state);
      if (const absl::Status ordered = self->order(); ordered.ok()) {
        function(self->result());
      } else {
        function(Result<T>(ordered));
      }
      function = nullptr;
      self = nullptr;
    };
    attach([executor = callback_executor(), task = std::move(task)]() mutable {
      if (executor != nullptr) {
        executor->post_clean_or_run(std::move(task));
      } else {
        task();
      }
    });
  }

 private:
  // Completes the future with what `store_result` stores, or with the exception that it throws.
  template <class F>
  bool complete_by(F&& store_result) noexcept {
    if (!claim()) return false;
    // A waiter may drop the promise, and with it the last reference, as soon as it sees the result.
    const std::shared_ptr<State> self = this->shared_from_this();
    try {
      store_result();
    } catch (...) {
      same_as_ = nullptr;
      lazy_ = nullptr;
      result_.emplace(status_from_exception(std::current_exception()));
    }
    publish();
    return true;
  }
  // As complete(), but a call on a complete future is not counted.
  void complete_quietly(absl::Status status) {
    if (!claim_quietly()) return;
    const std::shared_ptr<State> self = this->weak_from_this().lock();
    result_.emplace(std::move(status));
    publish();
  }
  // These are written by the thread that claimed, before it sets done_, and read only by threads that have
  // seen done_. One of the first three has the result.
  std::optional<Result<T>> result_;
  std::unique_ptr<LazyResult<T>> lazy_;
  std::shared_ptr<const State> same_as_;
  // The point in the streams of the producer after which the value may be read; nullptr: at once.
  StreamFencePtr fence_;
};

}  // namespace gradwire::future_internal
