#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::transport {

// Closes a socket so that the peer can read the last bytes. If a socket is closed while bytes of the peer are
// unread or under way, the kernel sends a reset, which may destroy what the peer has not read yet.
//
//   1. start_in_loop() sends the last bytes and ends this direction.
//   2. on_events_in_loop() reads and drops what the peer still sends, within limits.
//   3. The socket is closed when the peer has closed its end, or at a limit.
//
// Used only by the loop's driver.
class TcpFarewell : public EventHandler, public std::enable_shared_from_this<TcpFarewell> {
 public:
  static constexpr absl::Duration kMaxTime = absl::Seconds(1);
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

  // `done` is called when the socket has been closed. `loop` must outlive this object.
  TcpFarewell(EventLoop& loop, Descriptor socket, absl::AnyInvocable<void()> done)
      : loop_(loop), socket_(std::move(socket)), done_(std::move(done)) {}

  // Must be called once. `done` may be called before this returns.
  void start_in_loop(absl::string_view last_bytes);
  // Closes the socket. `done` is not called any more.
  void cancel_in_loop();

 private:
  void on_events_in_loop(uint32_t events) override;
  void failed_in_loop(const absl::Status&) override { close_in_loop(); }
  void close_in_loop();

  EventLoop& loop_;
  Descriptor socket_;
  absl::AnyInvocable<void()> done_;
  std::size_t dropped_ = 0;
  uint64_t handler_id_ = 0;
  uint64_t timer_ = 0;
};

}  // namespace gradwire::transport
