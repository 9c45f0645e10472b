#include "gradwire/store/c10d/c10d_connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradwire/base/clock.h"

namespace gradwire::store {
namespace {}  // namespace

void C10dConnection::start_in_loop(Handlers handlers) {
  handlers_ = std::move(handlers);
  const absl::StatusOr<uint64_t> id = loop_->add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    finish_in_loop();
    return;
  }
  handler_id_ = *id;
  // The bytes behind the greeting may have arrived before the socket was watched.
  defer_read_in_loop();
}

void C10dConnection::defer_read_in_loop() {
  deferred_ = true;
  loop_->turns_in_loop().defer([self = shared_from_this()] {
    self->deferred_ = false;
    self->read_in_loop();
  });
}

void C10dConnection::on_events_in_loop(uint32_t) {
  const std::shared_ptr<C10dConnection> self = shared_from_this();
  write_in_loop();
  if (!deferred_) read_in_loop();
}

void C10dConnection::read_in_loop() {
  const std::shared_ptr<C10dConnection> self = shared_from_this();
  transport::Turns& turns = loop_->turns_in_loop();
  for (bool first = true; socket_.valid() && !closing_; first = false) {
    if (!first && turns.spent()) {
      defer_read_in_loop();
      return;
    }
    const absl::Span<char> scratch = loop_->scratch_in_loop().first(read_size_.bytes());
    const absl::Time begin = turns.now();
    const ssize_t got = ::recv(socket_.get(), scratch.data(), scratch.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      finish_in_loop();
      return;
    }
    handlers_.on_bytes(absl::string_view(scratch.data(), static_cast<std::size_t>(got)));
    read_size_.on_handled(static_cast<std::size_t>(got), turns.now() - begin);
  }
}

void C10dConnection::send_in_loop(absl::string_view bytes) {
  if (!socket_.valid() || closing_) return;
  unsent_.append(bytes.data(), bytes.size());
  write_in_loop();
}

void C10dConnection::write_in_loop() {
  while (socket_.valid() && unsent_bytes() > 0) {
    const ssize_t put = ::send(socket_.get(), unsent_.data() + sent_, unsent_bytes(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (put < 0) {
      finish_in_loop();
      return;
    }
    sent_ += static_cast<std::size_t>(put);
  }
  // Free the memory of what has been sent, but do not move the rest after each write.
  if (sent_ > unsent_.size() / 2) {
    unsent_.erase(0, sent_);
    sent_ = 0;
    if (unsent_.empty()) unsent_.shrink_to_fit();
  }
  if (closing_ && unsent_bytes() == 0) finish_in_loop();
}

void C10dConnection::close_in_loop(absl::Duration flush) {
  if (!socket_.valid() || closing_) return;
  closing_ = true;
  if (flush <= absl::ZeroDuration()) {
    unsent_.clear();
    sent_ = 0;
  }
  if (unsent_bytes() > 0) {
    timer_ = loop_->schedule_in_loop(Clock::system().now() + flush,
                                     [self = shared_from_this()] { self->finish_in_loop(); });
  }
  write_in_loop();
}

// The end is reported from a task of its own: the caller may be in the middle of a list of connections.
void C10dConnection::finish_in_loop() {
  if (!socket_.valid()) return;
  const std::shared_ptr<C10dConnection> self = shared_from_this();
  loop_->cancel_in_loop(std::exchange(timer_, 0));
  if (handler_id_ != 0) loop_->remove_in_loop(socket_.get(), std::exchange(handler_id_, 0));
  socket_.reset();
  unsent_.clear();
  sent_ = 0;
  loop_->post([self] {
    const Handlers handlers = std::exchange(self->handlers_, Handlers());
    if (handlers.on_closed != nullptr) handlers.on_closed();
  });
}

}  // namespace gradwire::store
