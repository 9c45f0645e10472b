#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/preface.h"
#include "gradwire/transport/tcp/tcp_context.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// An accepted socket until its preface has been received, which says whether it is a connection or a stripe,
// or until the first bytes of the other protocol have been received. The socket is closed if the preface does
// not arrive in time. Used only by the loop's driver.
class Arrival : public EventHandler, public std::enable_shared_from_this<Arrival> {
 public:
  // `on_accept` must live until cancel_in_loop() or the end of this object.
  Arrival(std::shared_ptr<TcpContext> context, Descriptor socket, std::string peer,
          std::shared_ptr<const Transport::AcceptHandler> on_accept)
      : context_(std::move(context)),
        socket_(std::move(socket)),
        peer_(std::move(peer)),
        on_accept_(std::move(on_accept)) {}

  void start_in_loop();
  void cancel_in_loop();

 private:
  void on_events_in_loop(uint32_t events) override;
  void become_connection_in_loop(const Preface& preface);
  void become_stripe_in_loop(const Preface& preface);
  Descriptor take_socket_in_loop();
  // Number of bytes to read before they can be interpreted.
  std::size_t wanted_bytes() const;

  const std::shared_ptr<TcpContext> context_;
  Descriptor socket_;
  const std::string peer_;
  std::shared_ptr<const Transport::AcceptHandler> on_accept_;
  uint64_t handler_id_ = 0;
  uint64_t timer_ = 0;
  std::string received_;
};

}  // namespace gradwire::transport
