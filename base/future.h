#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/future_state.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/executor.h"

namespace gradwire {

// A value of type T (which may be void) that arrives later, or the reason why it will not.
//
// Copyable; every copy refers to the same result. Thread-safe. Completed once, by its Promise; later
// completions are ignored and counted. When every Promise is gone without a result, the future completes with
// Cancelled.
//
// Callbacks (then, on_ready, co_await) run with the ExecutionState of the code that attached them, outside
// every lock, on the executor that the Promise was made with: never on a thread that has user code below it.
// Without an executor they run where the promise is completed, or at once if it already is.
//
//   int64_t n = co_await future;            // in a coroutine that returns a Future
//   future.then([](int64_t n) { return n + 1; }).on_ready(...)
template <class T>
class [[nodiscard]] Future {
 public:
  // The type of the value; void where there is none.
  using value_type = T;
  // absl::StatusOr<T>; absl::Status where T is void.
  using Result = future_internal::Result<T>;

  Future() = default;
  // Completed from the start.
  Future(Result result) : state_(std::make_shared<future_internal::State<T>>(nullptr)) {
    state_->complete(std::move(result));
  }

  // False for a default-constructed future, of which nothing else may be asked.
  bool valid() const { return state_ != nullptr; }

  // Waits; returns a copy of the value or throws Error. Inside a handler the thread's place is taken by
  // another; with no thread left to take it: ResourceExhausted.
  T wait() const {
    if constexpr (std::is_void_v<T>) {
      throw_if_error(result());
    } else {
      return value_or_throw(result());
    }
  }

  // Waits; never throws.
  Result result() const {
    if (absl::Status waited = state_->wait(absl::InfiniteDuration()); !waited.ok()) return waited;
    return state_->result();
  }

  // Waits at most `timeout`; whether the future is done.
  bool wait_for(absl::Duration timeout) const { return done() || (state_->wait(timeout).ok() && done()); }
  // Whether there is a result. Never waits.
  bool done() const { return state_->done(); }

  // The future of what `function` returns. It takes the Result (an absl::StatusOr<T>, or absl::Status for
  // void) and so sees errors, or the T, and then errors pass it by; a generic one (auto) is given the Result.
  // A returned Future is flattened; an exception becomes the error. Cancelling the new future cancels this
  // one.
  template <class F>
  auto then(F function) const;

  // Calls `function` when done. What it throws is logged and lost.
  void on_ready(std::function<void(const Result&)> function) const {
    state_->on_ready([function = std::move(function)](const Result& result) {
      try {
        function(result);
      } catch (...) {
        future_internal::report_stray_exception("an on_ready callback");
      }
    });
  }

  // Gives up: tells the producer (a remote call's callee hears of it) and completes with Cancelled.
  void cancel() const { state_->cancel(); }

  // For code that only keeps books: `function` runs on the completing thread, or at once. It must not throw.
  void on_ready_inline(absl::AnyInvocable<void(const Result&)> function) const {
    state_->on_ready_inline(std::move(function));
  }

  // Where callbacks run; nullptr: where the promise is completed.
  const std::shared_ptr<Executor>& executor() const { return state_->executor(); }

 private:
  static_assert(!std::is_same_v<T, absl::Status>, "Future<void> carries an absl::Status");
  template <class U>
  friend class Promise;
  explicit Future(std::shared_ptr<future_internal::State<T>> state) : state_(std::move(state)) {}

  std::shared_ptr<future_internal::State<T>> state_;
};

// The producer's side. Copyable; thread-safe. The set_* methods return false when a result was there before.
template <class T>
class Promise {
 public:
  // `executor`: where callbacks run (see Future).
  explicit Promise(std::shared_ptr<Executor> executor = nullptr)
      : owner_(std::make_shared<Owner>(std::make_shared<future_internal::State<T>>(std::move(executor)))) {}

  // The future that this completes; each call returns another copy of it.
  Future<T> future() const { return Future<T>(owner_->state); }

  // Initialises the value as `T t(value...)` does. Arguments that only a cast converts do not compile. A void
  // promise takes no argument.
  template <class... V>
  requires future_internal::kInitialises<T, V...>
  bool set_value(V&&... value) const {
    if constexpr (std::is_void_v<T>) {
      return owner_->state->complete(absl::OkStatus());
    } else {
      return owner_->state->complete(typename Future<T>::Result(absl::in_place, std::forward<V>(value)...));
    }
  }
  // REQUIRES: !status.ok()
  bool set_error(absl::Status status) const { return owner_->state->fail(std::move(status)); }
  // Sets a value or an error.
  bool set_result(typename Future<T>::Result result) const {
    return owner_->state->complete(std::move(result));
  }

  // Whether neither a Future nor another Promise refers to the result at this moment: it would be destroyed
  // with this one, by whoever drops it.
  bool unobserved() const { return owner_.use_count() == 1 && owner_->state.use_count() == 1; }

  // `handler` runs once, on the cancelling thread, when the future is cancelled before it is done.
  void on_cancel(absl::AnyInvocable<void()> handler) const { owner_->state->on_cancel(std::move(handler)); }

 private:
  struct Owner {
    explicit Owner(std::shared_ptr<future_internal::State<T>> s) : state(std::move(s)) {}
    ~Owner() { state->abandon(); }
    const std::shared_ptr<future_internal::State<T>> state;
  };
  std::shared_ptr<Owner> owner_;
};

// How often a Promise of this process was completed a second time.
uint64_t ignored_completions();

namespace future_internal {

template <class R>
struct Unwrap {
  using type = R;
};
template <class R>
struct Unwrap<Future<R>> {
  using type = R;
};
template <class R>
struct Unwrap<absl::StatusOr<R>> {
  using type = R;
};
template <>
struct Unwrap<absl::Status> {
  using type = void;
};
template <class R>
inline constexpr bool kIsFuture = false;
template <class R>
inline constexpr bool kIsFuture<Future<R>> = true;

// Whether a function takes the result rather than the value. A value type that can be made of its own result
// (std::any) swallows anything, so that nothing can be told from the function's parameter: it gets the value.
template <class T, class F>
inline constexpr bool kTakesResult =
    std::is_invocable_v<F&, const Result<T>&> && !std::is_constructible_v<T, const Result<T>&>;
template <class F>
inline constexpr bool kTakesResult<void, F> = std::is_invocable_v<F&, const absl::Status&>;

// Runs `function` and completes `promise` with what it returns or throws.
template <class U, class F, class... A>
void settle(const Promise<U>& promise, F& function, A&&... arguments) {
  try {
    using R = std::remove_cvref_t<std::invoke_result_t<F&, A...>>;
    if constexpr (std::is_void_v<R>) {
      function(std::forward<A>(arguments)...);
      promise.set_value();
    } else if constexpr (kIsFuture<R>) {
      Future<U> inner = function(std::forward<A>(arguments)...);
      if (!inner.valid()) {
        promise.set_error(absl::FailedPreconditionError("the function returned a Future that has no state"));
        return;
      }
      promise.on_cancel([inner] { inner.cancel(); });
      inner.on_ready_inline([promise](const auto& result) { promise.set_result(result); });
    } else {
      promise.set_result(function(std::forward<A>(arguments)...));
    }
  } catch (...) {
    promise.set_error(status_from_exception(std::current_exception()));
  }
}

}  // namespace future_internal

template <class T>
template <class F>
auto Future<T>::then(F function) const {
  constexpr bool kTakesResult = future_internal::kTakesResult<T, F>;
  using U = typename future_internal::Unwrap<
      typename future_internal::ThenCall<T, F, kTakesResult>::Returned>::type;
  Promise<U> promise(executor());
  promise.on_cancel([self = *this] { self.cancel(); });
  Future<U> next = promise.future();
  state_->on_ready([promise, function = std::move(function)](const Result& result) mutable {
    if constexpr (kTakesResult) {
      future_internal::settle(promise, function, result);
    } else if (!future_internal::status_of(result).ok()) {
      promise.set_error(future_internal::status_of(result));
    } else if constexpr (std::is_void_v<T>) {
      future_internal::settle(promise, function);
    } else {
      future_internal::settle(promise, function, *result);
    }
  });
  return next;
}

// All values in order, or the first error; cancelling it cancels all.
template <class T>
Future<std::vector<T>> collect(std::vector<Future<T>> futures) {
  struct Progress {
    Mutex mutex;
    std::vector<std::optional<T>> values ABSL_GUARDED_BY(mutex);
    std::size_t missing ABSL_GUARDED_BY(mutex);
    std::atomic<bool> failed{false};
  };
  Promise<std::vector<T>> promise(futures.empty() ? nullptr : futures.front().executor());
  if (futures.empty()) {
    promise.set_value();
    return promise.future();
  }
  auto progress = std::make_shared<Progress>();
  {
    MutexLock lock(progress->mutex);
    progress->values.resize(futures.size());
    progress->missing = futures.size();
  }
  for (std::size_t i = 0; i < futures.size(); ++i) {
    futures[i].on_ready_inline([promise, progress, i](const absl::StatusOr<T>& result) {
      if (!result.ok()) {
        if (!progress->failed.exchange(true)) promise.set_error(result.status());
        return;
      }
      std::vector<T> values;
      {
        MutexLock lock(progress->mutex);
        progress->values[i] = *result;
        if (--progress->missing > 0) return;
        for (std::optional<T>& value : progress->values) values.push_back(*std::move(value));
      }
      promise.set_value(std::move(values));
    });
  }
  promise.on_cancel([futures = std::move(futures)] {
    for (const Future<T>& future : futures) future.cancel();
  });
  return promise.future();
}

// As collect of futures with values: done when all are, or the first error.
Future<void> collect(std::vector<Future<void>> futures);

}  // namespace gradwire

#include "gradwire/base/future_coroutine.h"  // IWYU pragma: export
