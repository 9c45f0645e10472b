#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/common/loop_context.h"
#include "gradwire/transport/connection.h"

namespace gradwire::transport {

// The common part of connections that read, and call their listener, on an event loop's driver: how they end.
// The parts of a connection (its sender, its receiver) use it through this class. A task or timer of a part
// captures shared_from_this() of the connection beside the part, and so keeps it.
//
// States: kOpen (from the start on: what is sent early is queued) -> kClosing -> kClosed. kClosing is between
// close() and on_closed: it lasts until what was queued has left, or the flush time is over. kOpen may go to
// kClosed directly.
class LoopConnection : public Connection, public std::enable_shared_from_this<LoopConnection> {
 public:
  LoopConnection(std::shared_ptr<LoopContext> context, std::string peer_address);

  void close(absl::Status reason, absl::Duration flush) final;
  std::string peer_address() const final { return peer_address_; }

  // Ends the connection unless a flush is under way.
  void shut_down_in_loop();
  // Ends the connection: releases what it has, then calls on_closed. The first reason wins.
  void finish_in_loop(absl::Status reason);
  // The same; the reason names the connection.
  void fail_in_loop(const absl::Status& reason);
  // close() was called, and all that was queued has left.
  virtual void drained_in_loop() { finish_in_loop(absl::OkStatus()); }
  // The other end is gone: ends the connection when what it sent before has been read.
  virtual void lost_in_loop(absl::string_view cause) { fail_in_loop(absl::UnavailableError(cause)); }

  // ResourceExhausted for a message that is over the limits.
  absl::Status check_sendable(const Message& message, const Limits& limits) const;
  // What send() returns once the connection is closed for `reason`.
  absl::Status closed_error(const absl::Status& reason) const;

  // A pointer that keeps the connection to one of its parts or bases. Any thread.
  template <class Part>
  std::shared_ptr<Part> keep(Part* part) {
    return std::shared_ptr<Part>(shared_from_this(), part);
  }

  // close() was called: no more messages are delivered. Any thread.
  bool close_called() const { return close_called_.load(std::memory_order_relaxed); }
  LoopContext& context() const { return *context_; }
  EventLoop& loop() const { return *context_->loop; }
  // Belongs to the loop's driver.
  ConnectionListener& listener() const { return *listener_; }

 protected:
  // For a connection that was accepted: ends it unless the other end has introduced itself in time.
  void await_introduction_in_loop();
  // The transport's own part of that is done, and there is a listener.
  virtual bool greeted_in_loop() const { return listener_ != nullptr; }
  // Makes the connection one of the transport's. False, having ended it, when the transport has shut down.
  bool begin_in_loop();
  // send() takes nothing from now on.
  virtual void refuse_sends(const absl::Status& reason) = 0;
  // Some time is left to send what is queued.
  virtual void flush_in_loop() = 0;
  // When that time is over; the infinite past before.
  absl::Time flush_until_in_loop() const { return flush_until_; }
  // The connection ends for good, for `reason`.
  virtual void release_in_loop(const absl::Status& reason) = 0;

  // Belongs to the loop's driver.
  std::shared_ptr<ConnectionListener> listener_;

 private:
  enum class State { kOpen, kClosing, kClosed };

  void begin_close_in_loop(absl::Time deadline);
  absl::Status shut_down_reason() const;

  const std::shared_ptr<LoopContext> context_;
  const std::string peer_address_;
  // Belongs to the loop's driver.
  uint64_t close_timer_ = 0;
  absl::Time flush_until_ = absl::InfinitePast();
  uint64_t introduction_timer_ = 0;

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  // Why it was closed, from the first close() or failure on.
  std::optional<absl::Status> close_reason_ ABSL_GUARDED_BY(mutex_);

  std::atomic<bool> close_called_{false};
};

}  // namespace gradwire::transport
