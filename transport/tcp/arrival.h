#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/admission/admission.h"
#include "gradwire/transport/tcp/secure/farewell.h"
#include "gradwire/transport/tcp/secure/handshake.h"
#include "gradwire/transport/tcp/secure/secured_socket.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/tcp_context.h"
#include "gradwire/transport/tcp/wire/preface.h"
#include "gradwire/transport/transport.h"
#include "gradwire/transport/turns/turn.h"

namespace gradwire::transport {

// An accepted socket until it is a connection, or a stripe of one. It has these stages:
//
//   1. The preface, which says what the socket shall be. Or the first bytes of the other protocol, which then
//      takes the socket.
//   2. The handshake, if the credentials demand a proof.
//   3. For a socket that is refused: the farewell, with the reason.
//
// Stages 1 and 2 together last at most as long as the introduction timeout. The context has the arrivals, and
// the place of each of them, which limits their number (admission.h). Used only by the loop's driver.
class Arrival : public EventHandler, public std::enable_shared_from_this<Arrival> {
 public:
  using OnAccept = std::shared_ptr<const Transport::AcceptHandler>;

  // Takes an accepted socket. Closes it if there is no place for it.
  static void accept_in_loop(const std::shared_ptr<TcpContext>& context, Descriptor socket,
                             const SocketAddress& peer, const OnAccept& on_accept);
  // Use accept_in_loop().
  Arrival(std::shared_ptr<TcpContext> context, Admission::Id place, const SocketAddress& peer,
          OnAccept on_accept)
      : context_(std::move(context)),
        place_(place),
        host_(host_to_string(peer)),
        peer_(to_string(peer)),
        on_accept_(std::move(on_accept)) {}

  // Closes the socket.
  void cancel_in_loop();

 private:
  void start_in_loop(Descriptor socket);
  // Reads what has arrived, in a later round if the time of the loop's round is over (turns.h).
  void on_events_in_loop(uint32_t events) override;
  void failed_in_loop(const absl::Status& error) override;
  void read_in_loop();
  void preface_arrived_in_loop();
  void begin_connection_in_loop(const Preface& preface);
  void become_connection_in_loop(const Preface& preface, SecuredSocket socket);
  void become_stripe_in_loop(const Preface& preface);
  void join_in_loop(const Preface& preface, Descriptor socket);
  void warn_in_loop(absl::string_view reason) const;
  // Logs the reason, says it to the peer unless `sentence` is empty, and closes the socket.
  void refuse_in_loop(Descriptor socket, absl::string_view reason, absl::string_view sentence);
  Descriptor take_socket_in_loop();
  // The arrival has ended. Its place is free unless the socket is a connection now.
  void end_in_loop();
  // Number of bytes to read before they can be interpreted.
  std::size_t wanted_bytes() const;

  const std::shared_ptr<TcpContext> context_;
  const Admission::Id place_;
  const std::string host_;
  const std::string peer_;
  // Lives until the end of this object.
  const OnAccept on_accept_;
  absl::Time deadline_;

  // Stage 1.
  Descriptor socket_;
  uint64_t handler_id_ = 0;
  uint64_t timer_ = 0;
  std::string received_;
  Turn turn_;

  // Stages 2 and 3.
  std::shared_ptr<TcpHandshake> handshake_;
  std::shared_ptr<TcpFarewell> farewell_;
};

}  // namespace gradwire::transport
