#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/secure_stream.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/secure/handshake.h"

namespace gradwire::transport {

class TcpStripes;

// One end of a stripe: an additional socket of a connection that carries shares of large buffers (frame.h
// defines the shares, stripe_control.h the protocol). Used only by the loop's driver.
class Stripe : public EventHandler, public std::enable_shared_from_this<Stripe> {
 public:
  Stripe(std::weak_ptr<TcpStripes> stripes, int number, Descriptor given)
      : socket(std::move(given)), stripes_(std::move(stripes)), number_(number) {}

  // The number of the stripe, from 1 on.
  int number() const { return number_; }

  // Runs the handshake of the opener, which has the socket meanwhile. `done` may be called before this
  // returns.
  void prove_in_loop(EventLoop& loop, std::unique_ptr<security::SocketHandshake> handshake,
                     absl::Time deadline, absl::AnyInvocable<void(const absl::Status& status)> done);
  // `done` is not called any more.
  void cancel_proof_in_loop();

  enum class Progress { kMore, kNothing, kComplete, kEnded };
  // Reads once: bytes of the outstanding shares or, if there are none, only whether the peer has closed the
  // stripe. kComplete: no share is outstanding any more.
  Progress read_in_loop(std::atomic<uint64_t>& arrived);

  // The outstanding shares, in order.
  struct ShareMemory {
    char* data;
    std::size_t size;
  };
  std::deque<ShareMemory> due;
  // The socket may have bytes whose share is not known yet.
  bool readable = false;
  // The stripe has ended. The errno of the read that found it; 0: the peer has closed the stripe.
  bool ended = false;
  int error = 0;
  // connect() or the handshake has not completed yet.
  bool connecting = false;
  Descriptor socket;
  uint64_t handler_id = 0;

 private:
  void on_events_in_loop(uint32_t events) override;
  void failed_in_loop(const absl::Status& error) override;

  const std::weak_ptr<TcpStripes> stripes_;
  const int number_;
  std::shared_ptr<TcpHandshake> handshake_;
};

}  // namespace gradwire::transport
