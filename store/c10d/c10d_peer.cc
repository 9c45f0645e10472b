#include "gradwire/store/c10d/c10d_peer.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/random_id.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::store {
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
  loop_->turns_in_loop().defer([self = shared_from_this()] {
    self->deferred_ = false;
    transport::EventLoop::handle_in_loop(*self, 0);
  });
  deferred_ = true;
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
  // The session would wait for the end.
  run_or_end("the end of a client's connection", [&] {
    loop_->post([self] {
      const Handlers handlers = std::exchange(self->handlers_, Handlers());
      if (handlers.on_closed != nullptr) handlers.on_closed();
    });
  });
}

C10dPeer::C10dPeer(std::shared_ptr<transport::EventLoop> loop, Descriptor socket, std::string address,
                   uint64_t session, std::weak_ptr<Host> host, std::size_t max_unsent_bytes)
    : connection_(std::make_shared<C10dConnection>(std::move(loop), std::move(socket))),
      address_(std::move(address)),
      session_number_(session),
      host_(std::move(host)),
      max_unsent_bytes_(max_unsent_bytes),
      session_(random_id()) {}

void C10dPeer::start_in_loop() {
  // Weak: the host has this object, and the loop has the connection.
  connection_->start_in_loop({.on_bytes =
                                  [weak = weak_from_this()](absl::string_view bytes) {
                                    if (const auto self = weak.lock()) self->receive_in_loop(bytes);
                                  },
                              .on_closed =
                                  [weak = weak_from_this()] {
                                    const auto self = weak.lock();
                                    const auto host = self == nullptr ? nullptr : self->host_.lock();
                                    if (host != nullptr) host->closed_in_loop(self->session_number_);
                                  }});
  receiving_ = true;
  const absl::Status status = session_.start(*this);
  receiving_ = false;
  finish_in_loop(status);
}

void C10dPeer::receive_in_loop(absl::string_view bytes) {
  receiving_ = true;
  const absl::Status status = session_.receive(bytes, *this);
  receiving_ = false;
  finish_in_loop(status);
}

// The answers before the error are sent: the client has asked for them.
void C10dPeer::finish_in_loop(const absl::Status& status) {
  connection_->send_in_loop(session_.take_output());
  const absl::Status failure = status.ok() ? std::exchange(failure_, absl::OkStatus()) : status;
  if (!failure.ok()) {
    log(LogLevel::kWarning, "the store closes the connection from the TCPStore at ", address_, ": ",
        failure.message());
    close_in_loop(failure, absl::Seconds(1));
  } else if (connection_->unsent_bytes() > max_unsent_bytes_) {
    log(LogLevel::kWarning, "the store closes the connection from the TCPStore at ", address_,
        ": it goes on sending requests but does not read the answers");
    close_in_loop(absl::ResourceExhaustedError("answers not read"), absl::ZeroDuration());
  }
}

// The output is checked after each answer, so that requests that arrive together cannot exceed the limit by
// much.
absl::Status C10dPeer::call(const proto::Request& request) {
  const std::shared_ptr<Host> host = host_.lock();
  if (host == nullptr) return absl::UnavailableError("the store's server has ended");
  GRADWIRE_RETURN_IF_ERROR(host->call_in_loop(session_number_, request));
  GRADWIRE_RETURN_IF_ERROR(std::exchange(failure_, absl::OkStatus()));
  if (session_.output_bytes() + connection_->unsent_bytes() <= max_unsent_bytes_ + kMaxMultiBytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError("the client goes on sending requests but does not read the answers");
}

void C10dPeer::cancel(uint64_t request) {
  if (const std::shared_ptr<Host> host = host_.lock()) host->cancel_in_loop(session_number_, request);
}

int64_t C10dPeer::add_workers(int64_t n) {
  const std::shared_ptr<Host> host = host_.lock();
  return host == nullptr ? 0 : host->add_workers_in_loop(n);
}

void C10dPeer::send_in_loop(const proto::Response& response) {
  const absl::Status status = session_.answer(response);
  if (failure_.ok()) failure_ = status;
  if (!receiving_) finish_in_loop(absl::OkStatus());
}

void C10dPeer::close_in_loop(const absl::Status&, absl::Duration flush) { connection_->close_in_loop(flush); }

}  // namespace gradwire::store
