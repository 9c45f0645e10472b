#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::transport {

class TcpStripes;

// One end of a stripe: a further socket of a connection that carries shares of large buffers (frame.h has
// which, stripe_control.h when).
// Belongs to the loop's driver.
class Stripe : public EventHandler {
 public:
  Stripe(std::weak_ptr<TcpStripes> stripes, int number, Descriptor given)
      : socket(std::move(given)), stripes_(std::move(stripes)), number_(number) {}

  // From 1 on.
  int number() const { return number_; }

  enum class Progress { kMore, kNothing, kComplete, kEnded };
  // Reads once: shares that are due, or, when none are, only whether the other end has closed it.
  // kComplete: nothing is due any more.
  Progress read_in_loop(std::atomic<uint64_t>& arrived);

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

  const std::weak_ptr<TcpStripes> stripes_;
  const int number_;
};

}  // namespace gradwire::transport
