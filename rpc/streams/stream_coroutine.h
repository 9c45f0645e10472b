#pragma once

#include <coroutine>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/streams/stream_source.h"

// Coroutines that return a Stream. They are lazy: the body starts with the first take. They run on the
// executor of the agent, with the ExecutionState that they had when they were suspended.
namespace gradwire::rpc {

template <class T>
class Stream;

namespace stream_internal {

template <class>
inline constexpr bool kNever = false;

// co_await of a Future inside a stream. In contrast to the awaiter of base/futures/future_coroutine.h the
// frame may be destroyed while it is suspended here: the callback of the future knows the source and not the
// frame.
template <class U>
class StreamAwaiter {
 public:
  StreamAwaiter(StreamSource& source, Future<U> future) : source_(source), future_(std::move(future)) {
    throw_if_error(future_.valid() ? absl::OkStatus()
                                   : absl::FailedPreconditionError("co_await on a Future that has no state"));
  }

  bool await_ready() const { return future_.done(); }
  void await_suspend(std::coroutine_handle<>) {
    // Copies: the frame, and with it this awaiter, may be gone as soon as the source knows the suspension.
    const Future<U> future = future_;
    const std::weak_ptr<StreamSource> weak = source_.weak_from_this();
    const uint64_t await = source_.suspended_at_await();
    // The completing thread must not read the value: that may decode it.
    future_internal::StateAccess::of(future)->on_done_inline([weak, await] {
      if (const std::shared_ptr<StreamSource> source = weak.lock()) source->resume_await(await);
    });
  }
  U await_resume() const { return future_.wait(); }

 private:
  StreamSource& source_;
  const Future<U> future_;
};

// The promise type of a coroutine that returns Stream<T>. The source, which owns the frame, outlives it.
template <class T>
class StreamCoroutine {
 public:
  Stream<T> get_return_object() {
    auto source = std::make_shared<TypedStreamSource<T>>();
    source_ = source.get();
    source->set_coroutine(std::coroutine_handle<StreamCoroutine>::from_promise(*this));
    return Stream<T>(std::move(source));
  }
  std::suspend_always initial_suspend() noexcept { return {}; }
  auto final_suspend() noexcept { return Finish(); }
  void return_void() {}
  void unhandled_exception() { status_ = status_from_exception(std::current_exception()); }

  // The coroutine is suspended while the buffer has no room for another item.
  auto yield_value(T item) {
    struct Yield {
      bool await_ready() const noexcept { return goes_on; }
      void await_suspend(std::coroutine_handle<>) const { source.suspended_at_yield(); }
      void await_resume() const noexcept {}
      StreamSource& source;
      const bool goes_on;
    };
    return Yield{*source_, source_->yield(std::move(item))};
  }

  template <class U>
  StreamAwaiter<U> await_transform(Future<U> future) {
    return StreamAwaiter<U>(*source_, std::move(future));
  }
  // Another awaitable would resume the coroutine although its frame may have been destroyed.
  template <class A>
  std::suspend_never await_transform(A&&) {
    static_assert(kNever<A>, "a coroutine that returns a Stream can only co_await a Future");
    return {};
  }

 private:
  // Destroys the frame, with the local variables, before the end is published.
  struct Finish {
    bool await_ready() noexcept { return false; }
    void await_suspend(std::coroutine_handle<StreamCoroutine> coroutine) noexcept {
      StreamSource& source = *coroutine.promise().source_;
      const absl::Status status = std::move(coroutine.promise().status_);
      coroutine.destroy();
      source.coroutine_ended(status);
    }
    void await_resume() noexcept {}
  };

  TypedStreamSource<T>* source_ = nullptr;
  absl::Status status_;
};

}  // namespace stream_internal
}  // namespace gradwire::rpc

template <class T, class... A>
struct std::coroutine_traits<gradwire::rpc::Stream<T>, A...> {
  using promise_type = gradwire::rpc::stream_internal::StreamCoroutine<T>;
};
