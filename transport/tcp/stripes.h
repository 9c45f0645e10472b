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
#include "gradwire/transport/tcp/send/sender.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/stripe.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gradwire/transport/tcp/wire/preface.h"
#include "gradwire/transport/tcp/wire/stripe_control.h"

namespace gradwire::transport {

// The stripes of a TCP connection: opens and closes them (stripe_control.h has the protocol), and receives
// their data.
//
// States: kOff -> kStarting -> kReady -> kDropping -> kOff. If the opener cannot open them: kRefused, which
// is final. kStarting has a deadline at both ends.
//
// Used only by the loop's driver, except for bytes_arrived(). It is a part of its connection.
class TcpStripes {
 public:
  // `on_shares` is called when the last outstanding share has arrived, possibly while its frame is being
  // read.
  TcpStripes(LoopConnection& connection, TcpSender& sender, const TcpOptions& options,
             const Preface::Token& token, std::function<void()> on_shares);

  // Called when the connection is established. `address`: the address that the connection and its stripes are
  // opened to; nullopt for an accepted connection.
  void start_in_loop(std::optional<SocketAddress> address);
  // Called when the connection is closed.
  void end_in_loop();

  // Called when a thread of this process has a large buffer to send.
  void want_in_loop();
  // A step of a stripe has thrown, or failed. The connection ends, unless the stripes have only begun to
  // start.
  void fail_in_loop(const absl::Status& error);
  // Registers a stripe whose preface had the token of this connection.
  void join_in_loop(const Preface& preface, Descriptor socket);
  // Handles a control frame. InvalidArgument if it is malformed or not allowed in this state.
  absl::Status control_in_loop(absl::string_view header);

  // Number of stripes that the next frame may use.
  int usable_in_loop() const;
  // Adds outstanding shares with these places.
  void place_in_loop(const std::vector<FrameParser::ShareMemory>& places);
  bool shares_are_due_in_loop() const;
  // Reads the outstanding shares.
  void read_due_in_loop();
  uint64_t bytes_arrived() const { return bytes_arrived_.load(std::memory_order_relaxed); }

  void on_events_in_loop(Stripe& stripe, uint32_t events);

 private:
  enum class State { kOff, kStarting, kReady, kDropping, kRefused };

  void open_in_loop();
  bool add_in_loop(int number, Descriptor socket, bool connecting);
  void connected_in_loop(Stripe& stripe);
  // The stripe has sent all that comes before its shares, or its handshake has failed.
  void opened_in_loop(Stripe& stripe, const absl::Status& status);
  // Gives up the stripes after `timeout`, with a warning, unless they are ready by then. `renews`: the time
  // begins again while bytes arrive on the connection.
  void give_up_after_in_loop(absl::Duration timeout, const char* cause, bool renews);
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
  // Sorted by number once they are complete.
  std::vector<std::shared_ptr<Stripe>> stripes_;
  int expected_ = 0;
  absl::Time last_used_;
  uint64_t timer_ = 0;
  std::atomic<uint64_t> bytes_arrived_{0};
};

}  // namespace gradwire::transport
