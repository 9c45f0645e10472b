// The part of TcpConnection that reads its stripes.

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "gradwire/base/clock.h"
#include "gradwire/transport/tcp/tcp_connection.h"

namespace gradwire::transport {
namespace {

constexpr int kReadsPerTurn = 16;
constexpr int kMaxPlaces = 16;

}  // namespace

void Stripe::on_events_in_loop(uint32_t events) {
  if (const std::shared_ptr<TcpConnection> connection = connection_.lock()) {
    connection->on_stripe_events_in_loop(*this, events);
  }
}

void TcpConnection::on_stripe_events_in_loop(Stripe& stripe, uint32_t events) {
  if (stripe.connecting) {
    if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) stripe_connected_in_loop(stripe);
    if (!stripe.socket.valid() || stripe.connecting) return;
  }
  if (events & EPOLLOUT) socket_writable_in_loop(static_cast<std::size_t>(stripe.number()));
  if (events & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
    stripe.readable = true;
    read_stripe_in_loop(stripe);
  }
}

void TcpConnection::place_shares_in_loop() {
  last_striped_ = Clock::system().now();
  for (const FrameParser::Place& place : parser_.take_stripe_places()) {
    // The parser knows how many there are.
    Stripe& stripe = *stripes_[static_cast<std::size_t>(place.stripe - 1)];
    stripe.due.push_back({static_cast<char*>(place.data), place.size});
  }
}

bool TcpConnection::shares_are_due_in_loop() const {
  return std::any_of(stripes_.begin(), stripes_.end(),
                     [](const std::shared_ptr<Stripe>& stripe) { return !stripe->due.empty(); });
}

void TcpConnection::read_due_stripes_in_loop() {
  // A copy: the connection may end.
  const std::vector<std::shared_ptr<Stripe>> stripes = stripes_;
  for (const std::shared_ptr<Stripe>& stripe : stripes) {
    if (stripe->due.empty() || !stripe->socket.valid()) continue;
    if (stripe->ended) {
      stripe_ended_in_loop(*stripe);
    } else if (stripe->readable) {
      read_stripe_in_loop(*stripe);
    }
  }
}

void TcpConnection::read_stripe_in_loop(Stripe& stripe) {
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    if (!stripe.socket.valid() || stripe.ended) return;
    if (stripe.due.empty()) {
      // What comes before its place is known stays in the socket; only the end is of interest.
      char byte;
      const ssize_t ahead = ::recv(stripe.socket.get(), &byte, 1, MSG_PEEK);
      if (ahead == 0 || (ahead < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        stripe_ended_in_loop(stripe);
      }
      return;
    }
    iovec places[kMaxPlaces];
    int count = 0;
    for (; count < kMaxPlaces && count < static_cast<int>(stripe.due.size()); ++count) {
      const Stripe::Place& place = stripe.due[static_cast<std::size_t>(count)];
      places[count] = {place.data, place.size};
    }
    const ssize_t result = ::readv(stripe.socket.get(), places, count);
    if (result < 0 && errno == EINTR) continue;
    if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      stripe.readable = false;
      return;
    }
    if (result <= 0) {
      stripe_ended_in_loop(stripe);
      return;
    }
    ++share_reads_;
    auto bytes = static_cast<std::size_t>(result);
    bytes_arrived_.fetch_add(bytes, std::memory_order_relaxed);
    while (bytes > 0) {
      Stripe::Place& place = stripe.due.front();
      const std::size_t step = std::min(bytes, place.size);
      place.data += step;
      place.size -= step;
      bytes -= step;
      if (place.size == 0) stripe.due.pop_front();
    }
    if (!stripe.due.empty()) continue;
    if (awaits_shares_ && !shares_are_due_in_loop()) {
      // Later: this may run within the reading of the frame that the shares belong to.
      context_->loop->post([self = shared_from_this()] { self->resume_after_shares_in_loop(); });
    }
    return;
  }
  const auto number = static_cast<std::size_t>(stripe.number());
  context_->loop->post([self = shared_from_this(), number] {
    if (number <= self->stripes_.size()) self->read_stripe_in_loop(*self->stripes_[number - 1]);
  });
}

void TcpConnection::stripe_ended_in_loop(Stripe& stripe) {
  stripe.ended = true;
  if (stripes_state_ == Stripes::kStarting) {
    // The other end wants none, or has given up.
    give_up_stripes_in_loop();
    return;
  }
  if (stripes_state_ == Stripes::kDropping && accepted_) {
    dropped_in_loop();
    return;
  }
  const bool in_the_middle = !stripe.due.empty();
  // Later: this may run within the reading of a frame. What came on the connection itself is delivered first.
  context_->loop->post([self = shared_from_this(), in_the_middle] {
    self->read_in_loop(true);
    self->finish_in_loop(self->unavailable(in_the_middle
                                               ? "the other end closed a stripe in the middle of a message"
                                               : "the other end closed a stripe"));
  });
}

void TcpConnection::note_end_in_loop(bool end_may_have_come) {
  read_until_end_ = read_until_end_ || end_may_have_come;
  if (read_until_end_) watch_shares_in_loop();
}

// The other end sends nothing more on the connection itself; shares may still come, within a bounded time.
void TcpConnection::watch_shares_in_loop() {
  if (shares_timer_ != 0) return;
  shares_timer_ = context_->loop->schedule_in_loop(
      Clock::system().now() + context_->options.user_timeout,
      [self = shared_from_this(), seen = share_reads_] {
        self->shares_timer_ = 0;
        if (!self->awaits_shares_) return;
        if (self->share_reads_ != seen) {
          self->watch_shares_in_loop();
        } else {
          self->finish_in_loop(self->unavailable("the other end closed it in the middle of a message"));
        }
      });
}

void TcpConnection::resume_after_shares_in_loop() {
  if (!awaits_shares_ || !socket_.valid() || shares_are_due_in_loop()) return;
  awaits_shares_ = false;
  SendBatch answers(SendBatch::Scope::kBrief);
  deliver_in_loop();
  if (!socket_.valid()) return;
  const std::string ahead = std::exchange(read_ahead_, std::string());
  if (!ahead.empty() && !close_called_.load(std::memory_order_relaxed) &&
      !accept_bytes_in_loop(0, absl::MakeConstSpan(ahead.data(), ahead.size()))) {
    if (awaits_shares_) note_end_in_loop(false);
    if (!stripes_.empty()) read_due_stripes_in_loop();
    return;
  }
  read_in_loop(std::exchange(read_until_end_, false));
}

}  // namespace gradwire::transport
