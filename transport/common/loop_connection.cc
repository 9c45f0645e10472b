#include "gradwire/transport/common/loop_connection.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/transport/common/message_sizes.h"

namespace gradwire::transport {

LoopConnection::LoopConnection(std::shared_ptr<LoopContext> context, std::string peer_address)
    : context_(std::move(context)), peer_address_(std::move(peer_address)) {}

bool LoopConnection::begin_in_loop() {
  context_->connections.insert(shared_from_this());
  if (context_->shutting_down) finish_in_loop(shut_down_reason());
  return !context_->shutting_down;
}

void LoopConnection::await_introduction_in_loop() {
  const absl::Duration timeout = context_->introduction_timeout;
  introduction_timer_ = schedule_in_loop(Clock::system().now() + timeout, [this, timeout] {
    if (is_greeted_in_loop() && listener_->introduced()) return;
    fail_in_loop(absl::DeadlineExceededError(
        absl::StrCat("the peer did not complete the handshake within ", absl::FormatDuration(timeout))));
  });
}

// Closing has these steps:
// 1. close() stores the reason and makes further sends fail, on any thread.
// 2. begin_close_in_loop() starts the flush, if there is time for one.
// 3. finish_in_loop() runs when the queue is empty, the flush time is over, or the connection fails. It
//    releases the resources and calls on_closed().
// A failure or a shutdown starts with step 3.
void LoopConnection::close(absl::Status reason, absl::Duration flush) {
  {
    MutexLock lock(mutex_);
    if (state_ != State::kOpen) return;
    state_ = State::kClosing;
    close_reason_ = reason;
    close_flush_until_ = flush > absl::ZeroDuration() ? Clock::system().now() + flush : absl::InfinitePast();
  }
  refuse_sends(reason);
  close_called_.store(true, std::memory_order_relaxed);
  // Not post(): a task with one pointer needs no memory, which the reason may be the lack of.
  loop().post([self = shared_from_this()] { self->run_in_loop([&] { self->begin_close_in_loop(); }); });
}

void LoopConnection::begin_close_in_loop() {
  absl::Time deadline;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kClosing) return;
    deadline = close_flush_until_;
  }
  flush_until_ = deadline;
  if (deadline <= Clock::system().now()) {
    finish_in_loop(absl::OkStatus());
    return;
  }
  close_timer_ = schedule_in_loop(deadline, [this] { finish_in_loop(absl::OkStatus()); });
  flush_in_loop();
}

void LoopConnection::shut_down_in_loop() {
  {
    MutexLock lock(mutex_);
    if (state_ != State::kOpen) return;
  }
  finish_in_loop(shut_down_reason());
}

absl::Status LoopConnection::shut_down_reason() const {
  return absl::CancelledError(absl::StrCat("the transport shut down; connection with ", peer_address_));
}

absl::Status LoopConnection::check_sendable(const Message& message, const Limits& limits) const {
  absl::Status status = check_message_sizes(message, limits);
  if (status.ok()) return status;
  return absl::ResourceExhaustedError(
      absl::StrCat("a message for ", peer_address_, " is too large: ", status.message()));
}

absl::Status LoopConnection::closed_error(const absl::Status& reason) const {
  return absl::UnavailableError(
      absl::StrCat("connection with ", peer_address_, " is closed: ", reason.message()));
}

void LoopConnection::run_in_loop(absl::FunctionRef<void()> step) noexcept {
  try {
    step();
  } catch (...) {
    fail_in_loop(caught("handling what has arrived"));
  }
}

void LoopConnection::fail_in_loop(const absl::Status& reason) {
  finish_in_loop(with_context(reason, absl::StrCat("connection with ", peer_address_)));
}

void LoopConnection::finish_in_loop(absl::Status reason) {
  {
    MutexLock lock(mutex_);
    // Only one caller passes: several causes may end a connection at the same time.
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    // The first reason wins.
    if (close_reason_.has_value()) {
      reason = *close_reason_;
    } else {
      close_reason_ = reason;
    }
  }
  // The steps below drop references to this connection, so keep one until the end.
  const std::shared_ptr<LoopConnection> self = shared_from_this();
  loop().cancel_in_loop(close_timer_);
  loop().cancel_in_loop(introduction_timer_);
  release_in_loop(reason);
  if (listener_ != nullptr) {
    // This was the last call of the listener. Release it, because it may own this connection.
    listener_->on_closed(*this, std::move(reason));
    listener_.reset();
  }
  context_->connections.erase(self);
  context_->end_if_done_in_loop();
}

void LoopContext::shut_down_in_loop() {
  shutting_down = true;
  // A copy, because on_closed() of a connection may change the table.
  const auto open = connections;
  for (const std::shared_ptr<LoopConnection>& connection : open) connection->shut_down_in_loop();
  end_if_done_in_loop();
}

void LoopContext::end_if_done_in_loop() {
  if (!shutting_down || !connections.empty()) return;
  loop->cancel_in_loop(pool_timer_);
  ended = true;
}

// Starts the timer that returns idle memory to the system, unless it runs already. The task holds only a
// weak reference: a pending timer must not keep a transport alive.
void LoopContext::trim_pool() {
  if (trimming_pool_.load(std::memory_order_relaxed) || trimming_pool_.exchange(true)) return;
  const auto start = [weak = weak_from_this()] {
    const std::shared_ptr<LoopContext> self = weak.lock();
    if (self == nullptr) return;
    // The next message with buffers tries again.
    if (!run_contained("scheduling the return of idle memory", [&] { self->trim_pool_in_loop(); }))
      self->trimming_pool_.store(false);
  };
  if (!run_contained("posting the return of idle memory", [&] { loop->post(start); }))
    trimming_pool_.store(false);
}

void LoopContext::trim_pool_in_loop() {
  if (ended) return;
  pool_timer_ =
      loop->schedule_in_loop(Clock::system().now() + pool->options().idle_time, [weak = weak_from_this()] {
        const std::shared_ptr<LoopContext> self = weak.lock();
        if (self == nullptr) return;
        self->pool->trim(Clock::system().now());
        if (self->pool->idle_bytes() > 0) {
          self->trim_pool_in_loop();
        } else {
          // Memory that is released between the check above and this store is not trimmed until the next
          // message with buffers calls trim_pool() again.
          self->trimming_pool_.store(false);
        }
      });
}

}  // namespace gradwire::transport
