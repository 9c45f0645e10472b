#include "gradwire/transport/tcp/stripes.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/transport/tcp/socket/dial.h"
#include "gradwire/transport/tcp/tcp_context.h"

namespace gradwire::transport {
namespace {

// Maximum time to connect all stripes.
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);

// Whether a stripe of the opener has not sent all that comes before its shares.
bool are_connecting(const std::vector<std::shared_ptr<Stripe>>& stripes) {
  return std::any_of(stripes.begin(), stripes.end(),
                     [](const std::shared_ptr<Stripe>& stripe) { return stripe->connecting; });
}

}  // namespace

TcpStripes::TcpStripes(LoopConnection& connection, TcpSender& sender, const TcpOptions& options,
                       const Preface::Token& token, std::function<void()> on_shares)
    : connection_(connection),
      sender_(sender),
      options_(options),
      token_(token),
      on_shares_(std::move(on_shares)) {}

void TcpStripes::start_in_loop(std::optional<SocketAddress> address) {
  started_ = true;
  address_ = address;
}

void TcpStripes::end_in_loop() {
  started_ = false;
  remove_in_loop();
}

void TcpStripes::want_in_loop() {
  if (!started_) {
    sender_.set_stripes_wanted(false);  // The next large buffer requests them again.
    return;
  }
  if (connection_.close_called()) return;
  if (address_.has_value()) {
    open_in_loop();
  } else {
    // Only the opener can connect. If it does not want stripes, it ignores this, and messages use the
    // single socket.
    sender_.send_control(StripeControl::kWant);
  }
}

void TcpStripes::open_in_loop() {
  const int count = std::min(options_.stripes, kMaxStripes);
  if (state_ != State::kOff || count <= 0) return;
  state_ = State::kStarting;
  sender_.set_stripes_wanted(true);
  try {
    give_up_after_in_loop(kConnectTimeout, "not all of them were connected", /*renews=*/false);
    for (int number = 1; number <= count; ++number) {
      Descriptor socket = begin_to_connect(*address_);
      if (socket.valid()) set_connection_options(socket.get(), options_);
      if (!socket.valid() || !add_in_loop(number, std::move(socket), /*connecting=*/true)) {
        give_up_in_loop();
        return;
      }
    }
  } catch (...) {
    fail_in_loop(caught("connecting"));
  }
}

bool TcpStripes::add_in_loop(int number, Descriptor socket, bool connecting) {
  const auto stripe = std::make_shared<Stripe>(connection_.keep(this), number, std::move(socket));
  stripe->connecting = connecting;
  stripes_.push_back(stripe);
  absl::StatusOr<uint64_t> id = connection_.loop().add_in_loop(stripe->socket.get(), stripe);
  if (id.ok()) stripe->handler_id = *id;
  return id.ok();
}

void TcpStripes::connected_in_loop(Stripe& stripe) {
  const std::string preface = Preface{.kind = Preface::Kind::kStripe,
                                      .stripe = stripe.number(),
                                      .stripes = static_cast<int>(stripes_.size()),
                                      .token = token_}
                                  .encode();
  // The buffer of a new socket has room for these bytes.
  if (connect_error(stripe.socket.get()) != 0 ||
      ::send(stripe.socket.get(), preface.data(), preface.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(preface.size())) {
    give_up_in_loop();
    return;
  }
  std::unique_ptr<security::SocketHandshake> handshake =
      stripe_handshake_of_opener(options_, stripe.socket.get(), connection_.peer_address());
  if (handshake == nullptr) {
    opened_in_loop(stripe, absl::OkStatus());
    return;
  }
  // `stripe` lives until remove_in_loop(), which cancels the handshake.
  stripe.prove_in_loop(connection_.loop(), std::move(handshake), Clock::system().now() + kConnectTimeout,
                       [this, &stripe](const absl::Status& status) { opened_in_loop(stripe, status); });
}

void TcpStripes::opened_in_loop(Stripe& stripe, const absl::Status& status) {
  if (!status.ok()) {
    fail_in_loop(status);
    return;
  }
  stripe.connecting = false;
  if (are_connecting(stripes_)) return;
  // "ready" may be queued behind a large message of the peer, so only a peer that sends nothing for
  // user_timeout is given up. The connection does not wait longer for a peer that does not read, either. If
  // "ready" comes after that, the peer uses stripes that are closed, and both ends close the connection.
  give_up_after_in_loop(options_.user_timeout, "the peer sent neither \"ready\" nor anything else",
                        /*renews=*/true);
}

void TcpStripes::give_up_after_in_loop(absl::Duration timeout, const char* cause, bool renews) {
  connection_.loop().cancel_in_loop(std::exchange(timer_, 0));
  timer_ = connection_.schedule_in_loop(
      Clock::system().now() + timeout, [this, timeout, cause, renews, arrived = connection_.bytes_arrived()] {
        timer_ = 0;
        if (renews && connection_.bytes_arrived() != arrived) {
          give_up_after_in_loop(timeout, cause, renews);
          return;
        }
        log(LogLevel::kWarning, "gave up the stripes of the connection with ", connection_.peer_address(),
            ": ", cause, " within ", absl::FormatDuration(timeout),
            "; the connection goes on with one socket");
        give_up_in_loop();
      });
}

// Removes the stripes: from now on messages use the single socket. No frame that is being received uses the
// stripes, because the parser accepts striped frames only after "ready".
void TcpStripes::give_up_in_loop() {
  if (state_ != State::kStarting) return;
  remove_in_loop();
  // The opener does not try again; the acceptor waits for a new attempt of the opener.
  state_ = address_.has_value() ? State::kRefused : State::kOff;
}

void TcpStripes::join_in_loop(const Preface& preface, Descriptor socket) {
  if (options_.stripes <= 0 || !started_ || connection_.close_called()) return;
  // The opener has closed the previous stripes, but this end has not seen it yet.
  if (state_ == State::kDropping) dropped_in_loop();
  if (state_ != State::kOff && state_ != State::kStarting) return;
  if (state_ == State::kOff) {
    give_up_after_in_loop(options_.introduction_timeout, "not all of them joined", /*renews=*/false);
  }
  state_ = State::kStarting;
  // Refuse a number that has joined before, and a total that differs from that of the other stripes.
  const bool known =
      std::any_of(stripes_.begin(), stripes_.end(), [&](const std::shared_ptr<Stripe>& stripe) {
        return stripe->number() == preface.stripe || expected_ != preface.stripes;
      });
  expected_ = preface.stripes;
  if (known || !add_in_loop(preface.stripe, std::move(socket), /*connecting=*/false)) {
    give_up_in_loop();
  } else if (static_cast<int>(stripes_.size()) == expected_) {
    sender_.send_control(StripeControl::kReady);
    ready_in_loop();
  }
}

void TcpStripes::ready_in_loop() {
  connection_.loop().cancel_in_loop(std::exchange(timer_, 0));
  std::sort(stripes_.begin(), stripes_.end(),
            [](const auto& one, const auto& other) { return one->number() < other->number(); });
  state_ = State::kReady;
  absl::InlinedVector<int, kMaxStripes> sockets;
  for (const std::shared_ptr<Stripe>& stripe : stripes_) sockets.push_back(stripe->socket.get());
  sender_.use_stripes(sockets);
}

int TcpStripes::usable_in_loop() const {
  // The acceptor may send striped frames until it answers the opener's "drop".
  // Frames arrive in order, so after the peer's "drop" no striped frame of it can follow.
  const bool usable = state_ == State::kReady || (state_ == State::kDropping && address_.has_value());
  return usable ? static_cast<int>(stripes_.size()) : 0;
}

// Each control frame is valid for one end and one state only. Any other one is an error of the peer, which
// closes the connection.
absl::Status TcpStripes::control_in_loop(absl::string_view header) {
  const auto control = header.size() == 1 ? static_cast<StripeControl>(header[0]) : StripeControl{0};
  const bool opener = address_.has_value();
  if (control == StripeControl::kWant && opener) {
    open_in_loop();
  } else if (control == StripeControl::kReady && opener && state_ == State::kStarting &&
             !are_connecting(stripes_)) {
    ready_in_loop();
    last_used_ = Clock::system().now();
    watch_idle_in_loop();
  } else if (control == StripeControl::kDrop && !opener && state_ == State::kReady) {
    state_ = State::kDropping;
    sender_.send_control(StripeControl::kDrop);
  } else if (control == StripeControl::kDrop && opener && state_ == State::kDropping) {
    dropped_in_loop();
  } else {
    return absl::InvalidArgumentError("malformed or unexpected control frame");
  }
  return absl::OkStatus();
}

void TcpStripes::watch_idle_in_loop() {
  timer_ =
      connection_.schedule_in_loop(last_used_ + options_.stripe_idle_time, [this] { drop_idle_in_loop(); });
}

void TcpStripes::drop_idle_in_loop() {
  timer_ = 0;
  if (connection_.close_called()) return;
  const absl::Time now = Clock::system().now();
  // Receiving updates last_used_ in place_in_loop(). Sending happens on other threads, so it only sets a
  // flag that is read here.
  if (sender_.take_sent_striped()) last_used_ = now;
  if (last_used_ + options_.stripe_idle_time > now) {
    watch_idle_in_loop();
    return;
  }
  state_ = State::kDropping;
  sender_.send_control(StripeControl::kDrop);
}

// No data is in flight on the stripes any more, in either direction.
void TcpStripes::dropped_in_loop() {
  remove_in_loop();
  state_ = State::kOff;
  sender_.set_stripes_wanted(false);
}

void TcpStripes::remove_in_loop() {
  connection_.loop().cancel_in_loop(std::exchange(timer_, 0));
  // 1. The sender stops using the descriptors and waits for writes in progress.
  // 2. The loop forgets the descriptors.
  // 3. Close them. Otherwise a new socket could get the same number in between.
  sender_.remove_stripes();
  for (const std::shared_ptr<Stripe>& stripe : stripes_) {
    stripe->cancel_proof_in_loop();
    if (stripe->handler_id != 0) {
      connection_.loop().remove_in_loop(stripe->socket.get(), std::exchange(stripe->handler_id, 0));
    }
    stripe->socket.reset();
  }
  stripes_.clear();
}

void TcpStripes::on_events_in_loop(Stripe& stripe, uint32_t events) {
  if (stripe.connecting) {
    if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) connected_in_loop(stripe);
    if (!stripe.socket.valid() || stripe.connecting) return;
  }
  if (events & EPOLLOUT) sender_.writable_in_loop(static_cast<std::size_t>(stripe.number()));
  if (events & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
    stripe.readable = true;
    read_in_loop(stripe);
  }
}

void TcpStripes::place_in_loop(const std::vector<FrameParser::ShareMemory>& places) {
  last_used_ = Clock::system().now();
  for (const FrameParser::ShareMemory& place : places) {
    // The parser has checked the number of the stripe.
    Stripe& stripe = *stripes_[static_cast<std::size_t>(place.stripe - 1)];
    stripe.due.push_back({static_cast<char*>(place.data), place.size});
  }
}

bool TcpStripes::shares_are_due_in_loop() const {
  return std::any_of(stripes_.begin(), stripes_.end(),
                     [](const std::shared_ptr<Stripe>& stripe) { return !stripe->due.empty(); });
}

void TcpStripes::read_due_in_loop() {
  if (stripes_.empty()) return;
  // A stripe may have become readable before its frame named a place for the bytes. epoll does not report
  // that again, so try all of them.
  // A copy, because the connection may be closed in the loop.
  const std::vector<std::shared_ptr<Stripe>> stripes = stripes_;
  for (const std::shared_ptr<Stripe>& stripe : stripes) {
    if (stripe->due.empty() || !stripe->socket.valid()) continue;
    if (stripe->ended) {
      ended_in_loop(*stripe);
    } else if (stripe->readable) {
      read_in_loop(*stripe);
    }
  }
}

void TcpStripes::read_in_loop(Stripe& stripe) {
  Turns& turns = connection_.loop().turns_in_loop();
  for (bool first = true; first || !turns.spent(); first = false) {
    if (!stripe.socket.valid() || stripe.ended) return;
    switch (stripe.read_in_loop(bytes_arrived_)) {
      case Stripe::Progress::kMore:
        break;
      case Stripe::Progress::kNothing:
        return;
      case Stripe::Progress::kEnded:
        ended_in_loop(stripe);
        return;
      case Stripe::Progress::kComplete:
        if (!shares_are_due_in_loop()) on_shares_();
        return;
    }
  }
  connection_.defer_in_loop([this, number = stripe.number()] {
    if (number <= static_cast<int>(stripes_.size()))
      read_in_loop(*stripes_[static_cast<std::size_t>(number - 1)]);
  });
}

// While the stripes start, no data is on them: the connection does without.
void TcpStripes::fail_in_loop(const absl::Status& error) {
  if (state_ != State::kStarting) {
    connection_.fail_in_loop(error);
    return;
  }
  log(LogLevel::kWarning, "gave up the stripes of the connection with ", connection_.peer_address(), ": ",
      error.message(), "; the connection goes on with one socket");
  give_up_in_loop();
}

// The end of a stripe means
// - while the stripes start: the peer does not want them; go on with the single socket.
// - for the acceptor after "drop": the opener has closed them, as agreed.
// - otherwise: data may be missing, so the connection is lost.
void TcpStripes::ended_in_loop(Stripe& stripe) {
  stripe.ended = true;
  if (state_ == State::kStarting) {
    // The peer does not want stripes, or has given up.
    give_up_in_loop();
    return;
  }
  if (state_ == State::kDropping && !address_.has_value()) {
    dropped_in_loop();
    return;
  }
  const std::string cause = sender_.cause_of_end(
      stripe.due.empty() ? "the peer closed a stripe" : "the peer closed a stripe in the middle of a message",
      stripe.error);
  // Continue in a task, because this may run while a frame is being read. Messages that arrived on the
  // connection itself are delivered first.
  connection_.post([this, cause] { connection_.lost_in_loop(cause); });
}

}  // namespace gradwire::transport
