// The part of TcpConnection that opens, joins and drops stripes; stripe_control.h has the protocol.

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/transport/tcp/tcp_connection.h"

namespace gradwire::transport {
namespace {

// For stripes to be connected and joined.
constexpr absl::Duration kStartPatience = absl::Seconds(10);

}  // namespace

// Somebody here has a large buffer to send.
void TcpConnection::want_stripes_in_loop() {
  if (!socket_.valid() || close_called_.load(std::memory_order_relaxed)) return;
  if (!accepted_) {
    open_stripes_in_loop();
    return;
  }
  {
    MutexLock lock(mutex_);
    send_control_locked(StripeControl::kWant);
  }
  write_queued();
}

void TcpConnection::open_stripes_in_loop() {
  const int count = std::min(context_->options.stripes, kMaxStripes);
  if (stripes_state_ != Stripes::kOff || count <= 0 || !connected_) return;
  stripes_state_ = Stripes::kStarting;
  {
    MutexLock lock(mutex_);
    stripes_wanted_ = true;
  }
  stripe_timer_ =
      context_->loop->schedule_in_loop(Clock::system().now() + kStartPatience, [self = shared_from_this()] {
        self->stripe_timer_ = 0;
        if (self->stripes_are_connecting_in_loop()) self->give_up_stripes_in_loop();
      });
  const SocketAddress& address = candidates_[next_candidate_ - 1];
  for (int number = 1; number <= count; ++number) {
    Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.valid() ||
        (::connect(socket.get(), address.get(), address.length) != 0 && errno != EINPROGRESS)) {
      give_up_stripes_in_loop();
      return;
    }
    set_connection_options(socket.get(), context_->options);
    auto stripe = std::make_shared<Stripe>(weak_from_this(), number, std::move(socket));
    stripe->connecting = true;
    stripes_.push_back(stripe);
    if (!watch_stripe_in_loop(stripe)) {
      give_up_stripes_in_loop();
      return;
    }
  }
}

bool TcpConnection::stripes_are_connecting_in_loop() const {
  return std::any_of(stripes_.begin(), stripes_.end(),
                     [](const std::shared_ptr<Stripe>& stripe) { return stripe->connecting; });
}

bool TcpConnection::watch_stripe_in_loop(const std::shared_ptr<Stripe>& stripe) {
  absl::StatusOr<uint64_t> id = context_->loop->add_in_loop(stripe->socket.get(), stripe);
  if (!id.ok()) return false;
  stripe->handler_id = *id;
  return true;
}

void TcpConnection::stripe_connected_in_loop(Stripe& stripe) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(stripe.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  const std::string preface = Preface{.kind = Preface::Kind::kStripe,
                                      .stripe = stripe.number(),
                                      .stripes = static_cast<int>(stripes_.size()),
                                      .token = token_}
                                  .encode();
  // A new socket takes these bytes at once.
  if (error != 0 || ::send(stripe.socket.get(), preface.data(), preface.size(), MSG_NOSIGNAL) !=
                        static_cast<ssize_t>(preface.size())) {
    give_up_stripes_in_loop();
    return;
  }
  stripe.connecting = false;
}

// Messages travel on the one socket then. No frame that is being received uses the stripes: the parser accepts striped
// frames from "ready" on.
void TcpConnection::give_up_stripes_in_loop() {
  if (stripes_state_ != Stripes::kStarting) return;
  remove_stripes_in_loop();
  // The end that opens them tries no more; the other waits for it to try again.
  stripes_state_ = accepted_ ? Stripes::kOff : Stripes::kRefused;
}

void TcpConnection::join_stripe_in_loop(const Preface& preface, Descriptor socket) {
  if (context_->options.stripes <= 0 || !socket_.valid() || close_called_.load(std::memory_order_relaxed))
    return;
  // The opener has closed the last ones, whose end has not been seen here yet.
  if (stripes_state_ == Stripes::kDropping) dropped_in_loop();
  if (stripes_state_ != Stripes::kOff && stripes_state_ != Stripes::kStarting) return;
  stripes_state_ = Stripes::kStarting;
  const bool known =
      std::any_of(stripes_.begin(), stripes_.end(), [&](const std::shared_ptr<Stripe>& stripe) {
        return stripe->number() == preface.stripe || stripes_expected_ != preface.stripes;
      });
  if (known) {
    give_up_stripes_in_loop();
    return;
  }
  stripes_expected_ = preface.stripes;
  auto stripe = std::make_shared<Stripe>(weak_from_this(), preface.stripe, std::move(socket));
  stripes_.push_back(stripe);
  if (!watch_stripe_in_loop(stripe)) {
    give_up_stripes_in_loop();
  } else if (static_cast<int>(stripes_.size()) == stripes_expected_) {
    stripes_joined_in_loop();
  }
}

void TcpConnection::stripes_joined_in_loop() {
  std::sort(stripes_.begin(), stripes_.end(),
            [](const auto& one, const auto& other) { return one->number() < other->number(); });
  stripes_state_ = Stripes::kReady;
  parser_.set_stripes(stripes_expected_);
  {
    MutexLock lock(mutex_);
    send_control_locked(StripeControl::kReady);
    use_stripes_locked();
  }
  write_queued();
}

void TcpConnection::use_stripes_locked() {
  if (state_ != State::kOpen) return;
  lanes_.resize(1 + stripes_.size());
  for (const std::shared_ptr<Stripe>& stripe : stripes_) {
    lanes_[static_cast<std::size_t>(stripe->number())].fd = stripe->socket.get();
  }
  lane_count_.store(lanes_.size(), std::memory_order_release);
  striping_.stripes = static_cast<int>(stripes_.size());
}

void TcpConnection::send_control_locked(StripeControl control) {
  const char byte = static_cast<char>(control);
  lanes_.front().queue.push_bytes(encode_control_frame(absl::string_view(&byte, 1)));
}

void TcpConnection::control_in_loop(absl::string_view header) {
  const auto control = header.size() == 1 ? static_cast<StripeControl>(header[0]) : StripeControl{0};
  switch (control) {
    case StripeControl::kWant:
      if (!accepted_) {
        open_stripes_in_loop();
        return;
      }
      break;
    case StripeControl::kReady:
      if (!accepted_ && stripes_state_ == Stripes::kStarting && !stripes_are_connecting_in_loop()) {
        context_->loop->cancel_in_loop(std::exchange(stripe_timer_, 0));
        stripes_state_ = Stripes::kReady;
        parser_.set_stripes(static_cast<int>(stripes_.size()));
        {
          MutexLock lock(mutex_);
          use_stripes_locked();
        }
        last_striped_ = Clock::system().now();
        watch_idle_stripes_in_loop();
        return;
      }
      break;
    case StripeControl::kDrop:
      if (accepted_ && stripes_state_ == Stripes::kReady) {
        stripes_state_ = Stripes::kDropping;
        parser_.set_stripes(0);
        {
          MutexLock lock(mutex_);
          striping_.stripes = 0;
          send_control_locked(StripeControl::kDrop);
        }
        write_queued();
        return;
      }
      if (!accepted_ && stripes_state_ == Stripes::kDropping) {
        dropped_in_loop();
        return;
      }
      break;
  }
  finish_in_loop(absl::InvalidArgumentError(
      absl::StrCat("connection with ", peer_address_, ": a control frame that makes no sense arrived")));
}

void TcpConnection::watch_idle_stripes_in_loop() {
  stripe_timer_ =
      context_->loop->schedule_in_loop(last_striped_ + context_->options.stripe_idle_time,
                                       [self = shared_from_this()] { self->drop_idle_stripes_in_loop(); });
}

void TcpConnection::drop_idle_stripes_in_loop() {
  stripe_timer_ = 0;
  if (close_called_.load(std::memory_order_relaxed)) return;
  bool idle = false;
  {
    MutexLock lock(mutex_);
    if (sent_striped_) last_striped_ = Clock::system().now();
    sent_striped_ = false;
    idle = last_striped_ + context_->options.stripe_idle_time <= Clock::system().now();
    if (idle) {
      striping_.stripes = 0;
      send_control_locked(StripeControl::kDrop);
    }
  }
  if (!idle) {
    watch_idle_stripes_in_loop();
    return;
  }
  stripes_state_ = Stripes::kDropping;
  write_queued();
}

// Nothing is under way on them any more, in either direction.
void TcpConnection::dropped_in_loop() {
  remove_stripes_in_loop();
  stripes_state_ = Stripes::kOff;
  MutexLock lock(mutex_);
  stripes_wanted_ = false;
}

void TcpConnection::remove_stripes_in_loop() {
  context_->loop->cancel_in_loop(std::exchange(stripe_timer_, 0));
  std::vector<Message> unsent;
  {
    MutexLock lock(mutex_);
    striping_.stripes = 0;
    for (std::size_t lane = 1; lane < lanes_.size(); ++lane) {
      lanes_[lane].fd = -1;
      await_write_locked(lane);
      for (Message& message : lanes_[lane].queue.clear()) unsent.push_back(std::move(message));
    }
    lanes_.resize(1);
    lane_count_.store(1, std::memory_order_release);
  }
  parser_.set_stripes(0);
  for (const std::shared_ptr<Stripe>& stripe : stripes_) {
    if (stripe->handler_id != 0) context_->loop->remove_in_loop(stripe->socket.get(), stripe->handler_id);
    stripe->handler_id = 0;
    stripe->socket.reset();
  }
  stripes_.clear();
}

}  // namespace gradwire::transport
