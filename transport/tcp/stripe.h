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

// One end of a stripe: an additional socket of a connection that carries shares of large buffers (frame.h
// defines the shares, stripe_control.h the protocol). Used only by the loop's driver.
class Stripe : public EventHandler {
 public:
  Stripe(std::weak_ptr<TcpStripes> stripes, int number, Descriptor given)
      : socket(std::move(given)), stripes_(std::move(stripes)), number_(number) {}

  // The number of the stripe, from 1 on.
  int number() const { return number_; }

  enum class Progress { kMore, kNothing, kComplete, kEnded };
  // Reads once: bytes of the outstanding shares or, if there are none, only whether the peer has closed the
  // stripe. kComplete: no share is outstanding any more.
  Progress read_in_loop(std::atomic<uint64_t>& arrived);

  // The outstanding shares, in order.
  struct Place {
    char* data;
    std::size_t size;
  };
  std::deque<Place> due;
  // The socket may have bytes whose share is not known yet.
  bool readable = false;
  // The peer has closed the stripe.
  bool ended = false;
  // connect() has not completed yet.
  bool connecting = false;
  Descriptor socket;
  uint64_t handler_id = 0;

 private:
  void on_events_in_loop(uint32_t events) override;

  const std::weak_ptr<TcpStripes> stripes_;
  const int number_;
};

}  // namespace gradwire::transport
