#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/secure_stream.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/secure/secured_socket.h"
#include "gradwire/transport/turns/turn.h"

namespace gradwire::transport {

// Drives the handshake of one end of a connection (security/secure_stream.h), after the preface.
//
//   1. advance_in_loop(): the handshake goes on as far as the socket allows. A step may take much time,
//      and the peer has not proved who it is: if the time of the loop's round is over, it waits.
//   2. on_events_in_loop(): the socket has bytes or room. Continue with step 1.
//   3. finish_in_loop(): `done` gets the socket and what is known of the peer.
//
// Used only by the loop's driver.
class TcpHandshake : public EventHandler, public std::enable_shared_from_this<TcpHandshake> {
 public:
  // `socket` always has the socket, so that its owner can close it properly after an error. Errors: those of
  // the handshake, and Unavailable if the time is over.
  using Done = absl::AnyInvocable<void(const absl::Status& status, SecuredSocket socket)>;

  // `handshake` uses `socket`. `loop` must outlive this object.
  TcpHandshake(EventLoop& loop, Descriptor socket, std::unique_ptr<security::SocketHandshake> handshake)
      : loop_(loop), socket_(std::move(socket)), handshake_(std::move(handshake)) {}

  // Must be called once. `done` may be called before this returns.
  void start_in_loop(absl::Time deadline, Done done);
  // `done` is not called any more. Closes the socket.
  void cancel_in_loop();

 private:
  void on_events_in_loop(uint32_t) override { advance_in_loop(); }
  void failed_in_loop(const absl::Status& error) override { finish_in_loop(error); }
  void advance_in_loop();
  void finish_in_loop(const absl::Status& status);

  EventLoop& loop_;
  Descriptor socket_;
  std::unique_ptr<security::SocketHandshake> handshake_;
  Done done_;
  uint64_t handler_id_ = 0;
  uint64_t timer_ = 0;
  Turn turn_;
};

}  // namespace gradwire::transport
