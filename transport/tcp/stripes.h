#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/tcp/address.h"
#include "gradwire/transport/tcp/frame.h"
#include "gradwire/transport/tcp/preface.h"
#include "gradwire/transport/tcp/send/sender.h"
#include "gradwire/transport/tcp/stripe.h"
#include "gradwire/transport/tcp/stripe_control.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::transport {

// The stripes of a TCP connection: how they come and go (stripe_control.h has the protocol), and what arrives
// on them.
//
// States: kOff -> kStarting -> kReady -> kDropping -> kOff; kRefused, for the end that opens them: never
// again.
//
// Belongs to the loop's driver, but for bytes_arrived(). Part of its connection.
class TcpStripes {
 public:
  // `on_shares` is called when the last share that was due has come; perhaps within the reading of its frame.
  TcpStripes(LoopConnection& connection, TcpSender& sender, const TcpOptions& options,
             const Preface::Token& token, std::function<void()> on_shares);

  // The connection is there. `address`: where it was opened to, and so are its stripes; none if it was
  // accepted.
  void start_in_loop(std::optional<SocketAddress> address);
  // The connection ends.
  void end_in_loop();

  // Somebody here has a large buffer to send.
  void want_in_loop();
  // Takes a stripe whose preface had this connection's token.
  void join_in_loop(const Preface& preface, Descriptor socket);
  // A control frame has come. InvalidArgument for one that makes no sense.
  absl::Status control_in_loop(absl::string_view header);

  // How many a frame that begins to arrive now may use.
  int usable_in_loop() const;
  // Shares are due at these places.
  void place_in_loop(const std::vector<FrameParser::Place>& places);
  bool shares_are_due_in_loop() const;
  // Reads what is due.
  void read_due_in_loop();
  uint64_t bytes_arrived() const { return bytes_arrived_.load(std::memory_order_relaxed); }

  void on_events_in_loop(Stripe& stripe, uint32_t events);

 private:
  enum class State { kOff, kStarting, kReady, kDropping, kRefused };

  void open_in_loop();
  bool add_in_loop(int number, Descriptor socket, bool connecting);
  void connected_in_loop(Stripe& stripe);
  bool are_connecting_in_loop() const;
  void give_up_in_loop();
  void ready_in_loop();
  void watch_idle_in_loop();
  void drop_idle_in_loop();
  void dropped_in_loop();
  void remove_in_loop();
  void read_in_loop(Stripe& stripe);
  void ended_in_loop(Stripe& stripe);

  LoopConnection& connection_;
  TcpSender& sender_;
  const TcpOptions& options_;
  const Preface::Token token_;
  const std::function<void()> on_shares_;

  bool started_ = false;
  std::optional<SocketAddress> address_;
  State state_ = State::kOff;
  // In the order of their numbers, once all are there.
  std::vector<std::shared_ptr<Stripe>> stripes_;
  int expected_ = 0;
  absl::Time last_used_;
  uint64_t timer_ = 0;
  std::atomic<uint64_t> bytes_arrived_{0};
};

}  // namespace gradwire::transport
