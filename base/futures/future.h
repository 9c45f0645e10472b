#pragma once

#include "gradwire/base/cpp20.h"

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
#include "gradwire/base/futures/future_state.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/executor.h"

namespace gradwire {

template <class T>
class Future;

namespace future_internal {

// As Future::result(), but moves the value out of the future in place of copying it. REQUIRES: `future` is
// the only Future of this value, and no callback was attached.
template <class T>
Result<T> take_result(Future<T> future);

// For code that handles results without reading them: values of users may be read only on threads that may
// run code of users.
struct StateAccess {
  template <class F>
  static auto& of(const F& future) {
    return future.state_;
  }
};

}  // namespace future_internal

// A value of type T (may be void) that arrives later, or the error that replaces it.
//
// Copyable; all copies refer to the same result. Thread-safe. A Promise completes the future once; later
// completions are ignored and counted. If all Promises are destroyed without a result, the future completes
// with Cancelled.
//
// A value may lie on a device that has not computed it yet. The current streams of a thread that takes it
// (wait, result, a callback, co_await) wait for it; the thread does not (base/threads/stream_fence.h).
//
// Callbacks (then, on_ready, co_await) run with the ExecutionState of the code that attached them. No lock is
// held while they run. They run on the executor that was given to the Promise, never on a thread that has
// user code below them on its stack. A Promise without an executor takes the one of the agent of the thread
// that attaches the callback. Without an agent, and after its shutdown, callbacks run on the thread that
// completes the promise, or at once if the promise is already complete.
//
//   int64_t n = co_await future;            // in a coroutine that returns a Future
//   future.then([](int64_t n) { return n + 1; }).on_ready(...)
template <class T>
class [[nodiscard]] Future {
 public:
  // The type of the value; may be void.
  using value_type = T;
  // absl::StatusOr<T>, or absl::Status if T is void.
  using Result = future_internal::Result<T>;

  Future() = default;
  // Creates a completed future.
  Future(const Result& result) : Future() { complete(result); }
  // As above. Moves the value.
  Future(Result&& result) : Future() { complete(std::move(result)); }

  // False for a default-constructed future. No other method may be called on such a future.
  bool valid() const { return state_ != nullptr; }

  // Waits; returns a copy of the value or throws Error. While a handler waits, another thread takes its place
  // in the pool. If blocking would leave no thread that can run tasks, fails with ResourceExhausted.
  T wait() const {
    if constexpr (std::is_void_v<T>) {
      throw_if_error(result());
    } else {
      return value_or_throw(result());
    }
  }

  // As wait(), but returns the error instead of throwing it.
  Result result() const {
    if (absl::Status waited = state_->wait(absl::InfiniteDuration()); !waited.ok()) return waited;
    if (absl::Status ordered = state_->order(); !ordered.ok()) return ordered;
    return state_->result();
  }

  // Waits at most `timeout`. Returns whether the future is done.
  bool wait_for(absl::Duration timeout) const { return done() || (state_->wait(timeout).ok() && done()); }
  // Whether the result is available. Never waits.
  bool done() const { return state_->done(); }

  // Returns a future of the value that `function` returns.
  //
  // If `function` takes a Result (absl::StatusOr<T>, or absl::Status for void), it also runs after an error.
  // If it takes a T, it does not run after an error; the error passes to the returned future. A generic
  // function (auto) gets the Result. If `function` returns a Future, the result is flattened. If it throws,
  // the exception becomes the error. Cancelling the returned future cancels this one.
  template <class F>
  auto then(F function) const;

  // Calls `function` when the future is done. An exception that it throws is logged and dropped.
  void on_ready(std::function<void(const Result&)> function) const {
    state_->on_ready([function = std::move(function)](const Result& result) {
      future_internal::call_contained("an on_ready callback", [&] { function(result); });
    });
  }

  // Cancels: notifies the producer (for a remote call, the callee) and completes the future with Cancelled.
  void cancel() const { state_->cancel(); }

  // For internal bookkeeping only: `function` runs on the completing thread, or at once. It takes the result,
  // and optionally the fence after which the value may be read. No stream waits for the fence here. Not for
  // values whose type is the user's, because the completing thread would run its code: see
  // future_internal::StateAccess.
  template <class F>
  void on_ready_inline(F function) const {
    if constexpr (std::is_invocable_v<F&, const Result&, const StreamFencePtr&>) {
      state_->on_ready_inline(std::move(function));
    } else {
      state_->on_ready_inline([function = std::move(function)](
                                  const Result& result, const StreamFencePtr&) mutable { function(result); });
    }
  }

  // The executor that runs callbacks. nullptr: callbacks run on the thread that completes the promise.
  const std::shared_ptr<Executor>& executor() const { return state_->executor(); }

 private:
  static_assert(!std::is_same_v<T, absl::Status>, "Future<void> carries an absl::Status");
  template <class U>
  friend class Promise;
  friend future_internal::StateAccess;
  explicit Future(std::shared_ptr<future_internal::State<T>> state) : state_(std::move(state)) {}

  template <class R>
  void complete(R&& result) {
    state_ = std::make_shared<future_internal::State<T>>(nullptr);
    state_->complete(std::forward<R>(result));
  }

  std::shared_ptr<future_internal::State<T>> state_;
};

// The producer's side of a Future. Copyable; thread-safe. The set_* methods return false if the future was
// already complete.
template <class T>
class Promise {
 public:
  // `executor` runs the callbacks; see Future.
  explicit Promise(std::shared_ptr<Executor> executor = nullptr)
      : obligation_(
            std::make_shared<Obligation>(std::make_shared<future_internal::State<T>>(std::move(executor)))) {}

  // The future that this promise completes. All returned copies refer to the same result.
  Future<T> future() const { return Future<T>(obligation_->state); }

  // Initialises the value as `T t(value...)` does. Arguments that would need an explicit cast do not compile.
  // A void promise takes no argument. If the constructor throws, its exception becomes the error of the
  // future.
  template <class... V>
  requires future_internal::kInitialises<T, V...>
  bool set_value(V&&... value) const {
    if constexpr (std::is_void_v<T>) {
      return obligation_->state->complete(absl::OkStatus());
    } else {
      return obligation_->state->complete(absl::in_place, std::forward<V>(value)...);
    }
  }
  // REQUIRES: !status.ok()
  bool set_error(absl::Status status) const { return obligation_->state->fail(std::move(status)); }
  // Sets a value or an error. An exception of a copy becomes the error.
  bool set_result(const typename Future<T>::Result& result) const {
    return obligation_->state->complete(result);
  }
  // The same, without a copy.
  bool set_result(typename Future<T>::Result&& result) const {
    return obligation_->state->complete(std::move(result));
  }
  // As above. The value may be read after `fence` (nullptr: at once), instead of after what this thread has
  // enqueued.
  bool set_result(typename Future<T>::Result&& result, StreamFencePtr fence) const {
    return obligation_->state->complete_after(std::move(fence), std::move(result));
  }
  // For the library: completes the future with a result that is made when it is first read. The completing
  // thread reads no value.
  bool set_lazy(std::unique_ptr<future_internal::LazyResult<T>> result, StreamFencePtr fence) const {
    return obligation_->state->complete_lazily(std::move(result), std::move(fence));
  }
  // For the library: the same with the result of another future, which is done.
  bool set_as(const Future<T>& done) const { return obligation_->state->complete_as(done.state_); }

  // `handler` runs once, on the cancelling thread, if the future is cancelled before it is done.
  void on_cancel(absl::AnyInvocable<void()> handler) const {
    obligation_->state->on_cancel(std::move(handler));
  }

 private:
  struct Obligation {
    explicit Obligation(std::shared_ptr<future_internal::State<T>> s) : state(std::move(s)) {}
    ~Obligation() { state->abandon(); }
    const std::shared_ptr<future_internal::State<T>> state;
  };
  std::shared_ptr<Obligation> obligation_;
};

// Number of times that a Promise of this process was completed again after it was complete.
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

// Whether a function takes the result rather than the value. A value type that can be constructed from its
// own result (std::any) accepts any argument, so the parameter of the function does not show what it expects;
// such a function gets the value.
template <class T, class F>
inline constexpr bool kTakesResult =
    std::is_invocable_v<F&, const Result<T>&> && !std::is_constructible_v<T, const Result<T>&>;
template <class F>
inline constexpr bool kTakesResult<void, F> = std::is_invocable_v<F&, const absl::Status&>;

// Runs `function` and completes `promise` with its return value or its exception.
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
      StateAccess::of(inner)->on_done_inline([promise, inner] { promise.set_as(inner); });
    } else {
      promise.set_result(function(std::forward<A>(arguments)...));
    }
  } catch (...) {
    promise.set_error(status_from_exception(std::current_exception()));
  }
}

template <class T>
Result<T> take_result(Future<T> future) {
  const std::shared_ptr<State<T>>& state = StateAccess::of(future);
  if (absl::Status waited = state->wait(absl::InfiniteDuration()); !waited.ok()) return waited;
  if (absl::Status ordered = state->order(); !ordered.ok()) return ordered;
  return state->take_result();
}

// The values of futures that are done, for collect().
template <class T>
class CollectedValues : public LazyResult<std::vector<T>> {
 public:
  explicit CollectedValues(std::vector<std::shared_ptr<const State<T>>> parts) : parts_(std::move(parts)) {}

  StreamFencePtr fence() const {
    std::vector<StreamFencePtr> fences;
    for (const auto& part : parts_) fences.push_back(part->fence());
    return join_fences(std::move(fences));
  }

 private:
  void make(std::optional<absl::StatusOr<std::vector<T>>>& result) override {
    std::vector<T> values;
    values.reserve(parts_.size());
    for (const auto& part : std::exchange(parts_, {})) {
      if (!part->result().ok()) {
        result.emplace(part->result().status());
        return;
      }
      values.push_back(*part->result());
    }
    result.emplace(std::move(values));
  }

  std::vector<std::shared_ptr<const State<T>>> parts_;
};

}  // namespace future_internal

template <class T>
template <class F>
auto Future<T>::then(F function) const {
  constexpr bool kTakesResult = future_internal::kTakesResult<T, F>;
  using U = typename future_internal::Unwrap<
      typename future_internal::ThenCall<T, F, kTakesResult>::Returned>::type;
  Promise<U> promise(state_->callback_executor());
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

// Returns a future of all values in order, or of the first error. Cancelling it cancels all `futures`.
template <class T>
Future<std::vector<T>> collect(std::vector<Future<T>> futures) {
  using Part = std::shared_ptr<const future_internal::State<T>>;
  struct Progress {
    std::vector<Part> parts;
    std::atomic<std::size_t> missing;
    std::atomic<bool> failed{false};
  };
  Promise<std::vector<T>> promise(futures.empty() ? nullptr : futures.front().executor());
  if (futures.empty()) {
    promise.set_value();
    return promise.future();
  }
  auto progress = std::make_shared<Progress>();
  for (const Future<T>& future : futures) progress->parts.push_back(future_internal::StateAccess::of(future));
  progress->missing = futures.size();
  for (std::size_t i = 0; i < futures.size(); ++i) {
    // The callback owns the progress, which owns the futures: the cycle ends when they are done.
    future_internal::StateAccess::of(futures[i])->on_done_inline([promise, progress, i] {
      if (absl::Status error = progress->parts[i]->known_error(); !error.ok()) {
        if (!progress->failed.exchange(true)) promise.set_error(std::move(error));
      } else if (progress->missing.fetch_sub(1) == 1) {
        auto values = std::make_unique<future_internal::CollectedValues<T>>(std::move(progress->parts));
        StreamFencePtr fence = values->fence();
        promise.set_lazy(std::move(values), std::move(fence));
      }
    });
  }
  promise.on_cancel([futures = std::move(futures)] {
    for (const Future<T>& future : futures) future.cancel();
  });
  return promise.future();
}

// As above, for futures without values: completes when all of them have completed, or with the first error.
Future<void> collect(std::vector<Future<void>> futures);

}  // namespace gradwire

#include "gradwire/base/futures/future_coroutine.h"  // IWYU pragma: export
