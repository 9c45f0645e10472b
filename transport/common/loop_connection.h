#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/common/loop_context.h"
#include "gradwire/transport/connection.h"

namespace gradwire::transport {

// The common part of connections that read, and call their listener, on the driver of an event loop. It
// implements the states and the end of a connection. The parts of a connection (its sender, its receiver) use
// it through this class.
//
// States: kOpen (initially; messages sent before the connection is established are queued) -> kClosing ->
// kClosed. kClosing is the time between close() and on_closed(): it lasts until the queued messages have been
// sent or the flush time is over. kOpen may change to kClosed directly.
class LoopConnection : public Connection, public std::enable_shared_from_this<LoopConnection> {
 public:
  LoopConnection(std::shared_ptr<LoopContext> context, std::string peer_address);

  void close(absl::Status reason, absl::Duration flush) final;
  std::string peer_address() const final { return peer_address_; }

  // Closes the connection unless a flush is in progress.
  void shut_down_in_loop();
  // Closes the connection: releases its resources, then calls on_closed(). The first reason wins.
  void finish_in_loop(absl::Status reason);
  // As above, and adds the address of the connection to the reason.
  void fail_in_loop(const absl::Status& reason);
  // Called when all queued messages have been sent after close().
  virtual void drained_in_loop() { finish_in_loop(absl::OkStatus()); }
  // Called when the peer is gone: closes the connection after all data that the peer sent before has been
  // read.
  virtual void lost_in_loop(absl::string_view cause) { fail_in_loop(absl::UnavailableError(cause)); }

  // Returns ResourceExhausted for a message that exceeds the limits.
  absl::Status check_sendable(const Message& message, const Limits& limits) const;
  // The error of send() after the connection was closed for `reason`.
  absl::Status closed_error(const absl::Status& reason) const;

  // Returns a pointer to a part or base of the connection that keeps the connection alive. May be called from
  // any thread.
  template <class Part>
  std::shared_ptr<Part> keep(Part* part) {
    return std::shared_ptr<Part>(shared_from_this(), part);
  }

  // Runs a step of this connection. If it throws, the connection ends with the error, and the loop goes on
  // with the others: what the step would have read or sent is lost, so the two ends do not agree any more.
  void run_in_loop(absl::FunctionRef<void()> step) noexcept;
  // Run the step in the same way later (see EventLoop and Turns). They keep the connection alive until then.
  // post() returns false if the loop has ended.
  template <class F>
  bool post(F step) {
    return loop().post(later(std::move(step)));
  }
  template <class F>
  void defer_in_loop(F step) {
    loop().turns_in_loop().defer(later(std::move(step)));
  }
  template <class F>
  uint64_t schedule_in_loop(absl::Time when, F step) {
    return loop().schedule_in_loop(when, later(std::move(step)));
  }

  // Whether close() was called: then no more messages are delivered. May be called from any thread.
  bool close_called() const { return close_called_.load(std::memory_order_relaxed); }
  LoopContext& context() const { return *context_; }
  EventLoop& loop() const { return *context_->loop; }
  // Used only by the loop's driver.
  ConnectionListener& listener() const { return *listener_; }

 protected:
  // For an accepted connection: closes it unless the peer introduces itself in time.
  void await_introduction_in_loop();
  // Whether the transport's own handshake is complete, and there is a listener.
  virtual bool is_greeted_in_loop() const { return listener_ != nullptr; }
  // Registers the connection with the transport. If the transport has shut down, closes the connection and
  // returns false.
  bool begin_in_loop();
  // From now on send() must fail.
  virtual void refuse_sends(const absl::Status& reason) = 0;
  // Starts to send the queued messages, for which some time is left.
  virtual void flush_in_loop() = 0;
  // The end of that time; the infinite past before close().
  absl::Time flush_until_in_loop() const { return flush_until_; }
  // Releases the resources of the part, because the connection is closed for `reason`.
  virtual void release_in_loop(const absl::Status& reason) = 0;

  // Used only by the loop's driver.
  std::shared_ptr<ConnectionListener> listener_;

 private:
  enum class State { kOpen, kClosing, kClosed };

  template <class F>
  auto later(F step) {
    return
        [self = shared_from_this(), step = std::move(step)]() mutable { self->run_in_loop([&] { step(); }); };
  }
  void begin_close_in_loop();
  absl::Status shut_down_reason() const;

  const std::shared_ptr<LoopContext> context_;
  const std::string peer_address_;
  // Used only by the loop's driver.
  uint64_t close_timer_ = 0;
  absl::Time flush_until_ = absl::InfinitePast();
  uint64_t introduction_timer_ = 0;

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  // The reason of the first close() or failure.
  std::optional<absl::Status> close_reason_ ABSL_GUARDED_BY(mutex_);
  // Until then close() lets queued messages leave.
  absl::Time close_flush_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  std::atomic<bool> close_called_{false};
};

}  // namespace gradwire::transport
