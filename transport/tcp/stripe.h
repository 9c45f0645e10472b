#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/stripe_control.h"

namespace gradwire::transport {

class TcpConnection;

// One end of a stripe: a further socket of a connection that carries shares of large buffers (frame.h has which,
// stripe_control.h when).
// Belongs to the loop's driver.
class Stripe : public EventHandler {
 public:
  Stripe(std::weak_ptr<TcpConnection> connection, int number, Descriptor given)
      : socket(std::move(given)), connection_(std::move(connection)), number_(number) {}

  // From 1 on.
  int number() const { return number_; }

  // Shares that are due, in order.
  struct Place {
    char* data;
    std::size_t size;
  };
  std::deque<Place> due;
  // The socket may have bytes that nothing was due for.
  bool readable = false;
  // The other end has closed it.
  bool ended = false;
  // connect() has not succeeded yet.
  bool connecting = false;
  Descriptor socket;
  uint64_t handler_id = 0;

 private:
  void on_events_in_loop(uint32_t events) override;

  const std::weak_ptr<TcpConnection> connection_;
  const int number_;
};

}  // namespace gradwire::transport
