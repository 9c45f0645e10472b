#pragma once

#include "base/future.h"

// co_await on a Future, and coroutines that return one:
//
//   Future<int64_t> sum(Destination a, Destination b) {
//     int64_t x = co_await rpc_async<&count>(a);
//     int64_t y = co_await rpc_async<&count>(b);
//     co_return x + y;
//   }
//
// A coroutine runs on the caller's thread until it first suspends, and is resumed on the awaited future's executor
// with the ExecutionState it had. Its future completes when its local variables have been destroyed.
namespace gradwire::future_internal {

template <class T>
class Awaiter {
 public:
  explicit Awaiter(Future<T> future) : future_(std::move(future)) {}

  bool await_ready() const { return future_.done(); }
  void await_suspend(std::coroutine_handle<> coroutine) {
    // A copy: the coroutine may be resumed, and this awaiter destroyed, before on_ready returns.
    Future<T> future = future_;
    future.on_ready([coroutine](const auto&) { coroutine.resume(); });
  }
  T await_resume() const { return future_.wait(); }

 private:
  const Future<T> future_;
};

template <class T>
class CoroutineBase {
 public:
  Future<T> get_return_object() { return promise_.future(); }
  std::suspend_never initial_suspend() noexcept { return {}; }
  std::suspend_never final_suspend() noexcept {
    promise_.set_result(*std::move(result_));
    return {};
  }
  void unhandled_exception() { result_.emplace(status_from_exception(std::current_exception())); }

 protected:
  Promise<T> promise_;
  std::optional<typename Future<T>::Result> result_;
};

template <class T>
class Coroutine : public CoroutineBase<T> {
 public:
  template <class V>
  void return_value(V&& value) {
    this->result_.emplace(std::forward<V>(value));
  }
};

template <>
class Coroutine<void> : public CoroutineBase<void> {
 public:
  void return_void() { result_.emplace(absl::OkStatus()); }
};

}  // namespace gradwire::future_internal

namespace gradwire {

template <class T>
future_internal::Awaiter<T> operator co_await(Future<T> future) {
  return future_internal::Awaiter<T>(std::move(future));
}

}  // namespace gradwire

template <class T, class... A>
struct std::coroutine_traits<gradwire::Future<T>, A...> {
  using promise_type = gradwire::future_internal::Coroutine<T>;
};
