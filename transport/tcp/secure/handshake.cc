#include "gradwire/transport/tcp/secure/handshake.h"

#include "absl/status/statusor.h"

namespace gradwire::transport {

void TcpHandshake::start_in_loop(absl::Time deadline, Done done) {
  done_ = std::move(done);
  absl::StatusOr<uint64_t> id = loop_.add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    finish_in_loop(id.status());
    return;
  }
  handler_id_ = *id;
  timer_ = loop_.schedule_in_loop(deadline, [self = shared_from_this()] {
    self->timer_ = 0;
    self->finish_in_loop(absl::UnavailableError("the peer did not complete the handshake in time"));
  });
  advance_in_loop();
}

void TcpHandshake::advance_in_loop() {
  if (!turn_.take(loop_.turns_in_loop(),
                  [self = shared_from_this()] { EventLoop::handle_in_loop(*self, 0); }))
    return;
  // The handshake may have ended while this waited.
  if (done_ == nullptr) return;
  const absl::StatusOr<security::SocketHandshake::Progress> progress = handshake_->step();
  if (!progress.ok()) {
    finish_in_loop(progress.status());
  } else if (*progress == security::SocketHandshake::Progress::kDone) {
    finish_in_loop(absl::OkStatus());
  }
  // Otherwise the loop reports when the socket has bytes, or room.
}

// `done_` is taken out first: it is called at most once, and it may destroy the owner of this object.
void TcpHandshake::finish_in_loop(const absl::Status& status) {
  Done done = std::exchange(done_, nullptr);
  if (done == nullptr) return;
  SecuredSocket result;
  if (status.ok()) {
    result.peer = handshake_->peer();
    result.stream = handshake_->take_stream();
  }
  const std::shared_ptr<TcpHandshake> self = shared_from_this();
  loop_.cancel_in_loop(std::exchange(timer_, 0));
  if (handler_id_ != 0) loop_.remove_in_loop(socket_.get(), std::exchange(handler_id_, 0));
  handshake_.reset();
  result.socket = std::move(socket_);
  done(status, std::move(result));
}

void TcpHandshake::cancel_in_loop() {
  const std::shared_ptr<TcpHandshake> self = shared_from_this();
  done_ = nullptr;
  loop_.cancel_in_loop(std::exchange(timer_, 0));
  if (handler_id_ != 0) loop_.remove_in_loop(socket_.get(), std::exchange(handler_id_, 0));
  handshake_.reset();
  socket_.reset();
}

}  // namespace gradwire::transport
