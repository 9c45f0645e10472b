#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/preface.h"
#include "gradwire/transport/tcp/tcp_context.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// A socket that was accepted, until its preface has come and says what it is. One that sends none in time is
// closed. Belongs to the loop's driver.
class Arrival : public EventHandler, public std::enable_shared_from_this<Arrival> {
 public:
  // `on_accept` outlives it or is cleared with cancel_in_loop.
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
  Descriptor leave_in_loop();

  const std::shared_ptr<TcpContext> context_;
  Descriptor socket_;
  const std::string peer_;
  std::shared_ptr<const Transport::AcceptHandler> on_accept_;
  uint64_t handler_id_ = 0;
  uint64_t timer_ = 0;
  std::string received_;
};

}  // namespace gradwire::transport
