#pragma once

#include "gradwire/base/futures/future.h"

// co_await on a Future, and coroutines that return one:
//
//   Future<int64_t> sum(Destination a, Destination b) {
//     int64_t x = co_await rpc_async<&count>(a);
//     int64_t y = co_await rpc_async<&count>(b);
//     co_return x + y;
//   }
//
// A coroutine runs on the caller's thread until it first suspends. It is resumed on the executor of the
// awaited future, with the ExecutionState that it had when it suspended. The caller continues with its own
// ExecutionState. The future of the coroutine completes after the coroutine's local variables and parameters
// have been destroyed.
//
// GCC 12 destroys some temporaries of a co_await expression twice: aggregates whose members have destructors,
// and lambdas that capture such objects by value. Create such temporaries in a separate statement, or give
// them a name:
//
//   Future<int64_t> next = future.then([name](int64_t n) { ... });   // not inside the co_await
//   int64_t n = co_await next;
namespace gradwire::future_internal {

// The part of a coroutine's promise that does not depend on the type that the coroutine returns.
class CoroutineState {
 public:
  // Returns the ExecutionState that the thread had before the coroutine ran on it. The first suspension
  // restores it. Later resumptions run inside a ScopedExecutionState, so the next calls return nullopt.
  std::optional<ExecutionState> take_caller_state() { return std::exchange(caller_state_, std::nullopt); }

 private:
  std::optional<ExecutionState> caller_state_ = ExecutionState::capture();
};

template <class T>
class Awaiter {
 public:
  explicit Awaiter(Future<T> future) : future_(std::move(future)) {
    throw_if_error(future_.valid() ? absl::OkStatus()
                                   : absl::FailedPreconditionError("co_await on a Future that has no state"));
  }

  bool await_ready() const { return future_.done(); }

  template <class P>
  void await_suspend(std::coroutine_handle<P> coroutine) {
    std::optional<ExecutionState> caller_state;
    if constexpr (std::is_base_of_v<CoroutineState, P>)
      caller_state = coroutine.promise().take_caller_state();
    // A copy: the coroutine may be resumed, and this awaiter destroyed, before on_ready returns.
    const Future<T> future = future_;
    future.on_ready([coroutine](const auto&) { coroutine.resume(); });
    if (caller_state) caller_state->restore();
  }

  T await_resume() const { return future_.wait(); }

 private:
  const Future<T> future_;
};

template <class T>
class CoroutineBase : public CoroutineState {
 public:
  Future<T> get_return_object() { return promise_.future(); }
  std::suspend_never initial_suspend() noexcept { return {}; }
  auto final_suspend() noexcept { return Finish(); }
  void unhandled_exception() { result_.emplace(status_from_exception(std::current_exception())); }

 protected:
  std::optional<typename Future<T>::Result> result_;

 private:
  // The final awaiter: destroys the coroutine, then publishes the result.
  struct Finish {
    bool await_ready() noexcept { return false; }
    template <class P>
    void await_suspend(std::coroutine_handle<P> coroutine) noexcept {
      CoroutineBase& self = coroutine.promise();
      Promise<T> promise = std::move(self.promise_);
      std::optional<typename Future<T>::Result> result;
      try {
        store(result, *std::move(self.result_));
      } catch (...) {
        // The move constructor of the value has thrown.
        result.emplace(status_from_exception(std::current_exception()));
      }
      coroutine.destroy();
      promise.set_result(*std::move(result));
    }
    void await_resume() noexcept {}
  };

  Promise<T> promise_;
};

template <class T>
class Coroutine : public CoroutineBase<T> {
 public:
  // The default type lets `co_return {a, b};` construct a T.
  template <class V = T>
  void return_value(V&& value) {
    store(this->result_, std::forward<V>(value));
  }
};

template <>
class Coroutine<void> : public CoroutineBase<void> {
 public:
  void return_void() { result_.emplace(absl::OkStatus()); }
};

}  // namespace gradwire::future_internal

namespace gradwire {

// Waits for `future` and returns its value or throws Error. FailedPrecondition for a default-constructed
// future.
template <class T>
future_internal::Awaiter<T> operator co_await(Future<T> future) {
  return future_internal::Awaiter<T>(std::move(future));
}

}  // namespace gradwire

template <class T, class... A>
struct std::coroutine_traits<gradwire::Future<T>, A...> {
  using promise_type = gradwire::future_internal::Coroutine<T>;
};
