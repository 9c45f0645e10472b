#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/credentials.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/secure/handshake.h"
#include "gradwire/transport/tcp/secure/secured_socket.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/socket/dial.h"

namespace gradwire::transport {

// Opens a connection.
//
//   1. A TcpDial connects to the first address that answers. The owner checks the socket.
//   2. Without a handshake the socket is ready: the owner sends the preface together with its first message.
//   3. Otherwise this object sends the preface, and a TcpHandshake follows.
//   4. If the peer closes the connection during the handshake without a refusal, it may have had no place for
//      it (admission.h): begin again with step 1 after a pause, while time is left.
//
// Used only by the loop's driver.
class TcpOpening : public std::enable_shared_from_this<TcpOpening> {
 public:
  struct Options {
    // The address of the peer for messages, and the addresses to try, at least one.
    std::string peer;
    std::vector<SocketAddress> addresses;
    security::CredentialsPtr credentials;
    // The address of the peer is filled in when it is known.
    security::ConnectionFacts facts;
    // The encoded preface.
    std::string preface;
    // Called with each connected socket. An error ends the attempt, as one of the handshake does.
    std::function<absl::Status(int socket)> prepare;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<SecuredSocket> socket)>;

  // `loop` must outlive this object.
  TcpOpening(EventLoop& loop, Options options) : loop_(loop), options_(std::move(options)) {}

  // Must be called once. `done` may be called before this returns.
  void start_in_loop(absl::Time deadline, Done done);
  // `done` is not called any more.
  void cancel_in_loop();
  // The address that answered.
  const SocketAddress& address() const { return dial_->address(); }

 private:
  // Runs a step. If it throws, the opening ends with the error.
  void run_in_loop(absl::FunctionRef<void()> step) noexcept;
  void dial_in_loop();
  void connected_in_loop(Descriptor socket);
  void lost_in_loop(const absl::Status& reason);
  void finish_in_loop(absl::StatusOr<SecuredSocket> result);

  EventLoop& loop_;
  const Options options_;
  absl::Time deadline_;
  Done done_;
  std::shared_ptr<TcpDial> dial_;
  std::shared_ptr<TcpHandshake> handshake_;
  absl::Duration pause_ = absl::Milliseconds(20);
  uint64_t timer_ = 0;
};

}  // namespace gradwire::transport
