// The part of TcpConnection that reads its own socket.

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/tcp/tcp_connection.h"

namespace gradwire::transport {
namespace {

// Reads of one connection before the others get their turn.
constexpr int kReadsPerTurn = 16;
constexpr int kMaxPlaces = 16;

}  // namespace

void TcpConnection::read_in_loop(bool until_end) {
  if (awaits_shares_) {
    note_end_in_loop(until_end);
    return;
  }
  // What the listener answers to what one read brought leaves together.
  SendBatch answers(SendBatch::Scope::kBrief);
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    if (!socket_.valid()) return;
    const bool more = read_once_in_loop(until_end);
    if (!stripes_.empty()) read_due_stripes_in_loop();
    if (!more) {
      // The end may have come together with the frame that now waits; it is not reported again.
      if (awaits_shares_) note_end_in_loop(until_end);
      return;
    }
    SendBatch::flush();
  }
  // Others have their turn; the edge that was told will not be told again.
  context_->loop->post([self = shared_from_this(), until_end] { self->read_in_loop(until_end); });
}

bool TcpConnection::read_once_in_loop(bool until_end) {
  const bool discard = close_called_.load(std::memory_order_relaxed);
  iovec places[kMaxPlaces + 1];
  int count = 0;
  // Between frames all goes to scratch memory: most messages are small, and several come at once.
  if (!discard && !parser_.between_frames()) {
    absl::StatusOr<int> found = parser_.places(places, kMaxPlaces);
    if (!found.ok()) {
      finish_in_loop(with_context(found.status(), absl::StrCat("connection with ", peer_address_)));
      return false;
    }
    count = *found;
  }
  std::size_t room = 0;
  for (int i = 0; i < count; ++i) room += places[i].iov_len;
  // What follows the piece that is due comes along into scratch memory, so that small pieces cost no call each.
  const absl::Span<char> scratch = context_->loop->scratch_in_loop();
  places[count] = {scratch.data(), scratch.size()};
  const ssize_t result = count == 0 ? ::recv(socket_.get(), scratch.data(), scratch.size(), 0)
                                    : ::readv(socket_.get(), places, count + 1);
  if (result == 0) {
    finish_in_loop(unavailable(parser_.between_frames()
                                   ? "the other end closed it"
                                   : "the other end closed it in the middle of a message"));
    return false;
  }
  if (result < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN && errno != EWOULDBLOCK) finish_in_loop(unavailable(std::strerror(errno)));
    return false;
  }
  const auto bytes = static_cast<std::size_t>(result);
  bytes_arrived_.fetch_add(bytes, std::memory_order_relaxed);
  const std::size_t in_places = std::min(bytes, room);
  if (!discard && !accept_bytes_in_loop(in_places, scratch.first(bytes - in_places))) return false;
  // Less than was asked for: the socket is empty, and epoll will tell of more.
  return bytes == room + scratch.size() || until_end;
}

bool TcpConnection::accept_bytes_in_loop(std::size_t in_places, absl::Span<const char> beyond) {
  absl::Status status;
  if (in_places > 0) status = parser_.advance(in_places);
  while (status.ok()) {
    if (parser_.has_stripe_places()) place_shares_in_loop();
    if (parser_.complete()) {
      if (shares_are_due_in_loop()) {
        awaits_shares_ = true;
        read_ahead_.assign(beyond.data(), beyond.size());
        return false;
      }
      deliver_in_loop();
    }
    if (!socket_.valid()) return false;
    if (beyond.empty() || close_called_.load(std::memory_order_relaxed)) return true;
    if (parser_.between_frames()) parser_.set_max_message_bytes(listener_->max_message_bytes());
    status = parser_.consume(beyond);
  }
  finish_in_loop(with_context(status, absl::StrCat("connection with ", peer_address_)));
  return false;
}

void TcpConnection::deliver_in_loop() {
  Message message = parser_.take();
  if (close_called_.load(std::memory_order_relaxed)) return;
  if (parser_.is_control()) {
    control_in_loop(message.header);
    return;
  }
  if (message.byte_size() >= BufferPool::kPooledFrom) context_->tend_pool_in_loop();
  listener_->on_message(*this, std::move(message));
}

}  // namespace gradwire::transport
