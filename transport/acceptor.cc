#include "gradwire/transport/acceptor.h"

#include <cerrno>

#include "absl/status/statusor.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::transport {
namespace {

// Interval between attempts to accept while the process has no free descriptors.
constexpr absl::Duration kRetryAccept = absl::Milliseconds(100);

}  // namespace

// If the socket cannot be watched, the transport goes on without accepting connections: its own connections
// still work.
void Acceptor::start_in_loop() {
  if (!socket_.valid()) return;
  absl::StatusOr<uint64_t> id = loop_->add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    log(LogLevel::kError,
        "cannot watch the listening socket, so no connections will be accepted: ", id.status().ToString());
    return;
  }
  handler_id_ = *id;
}

void Acceptor::stop_in_loop() {
  loop_->cancel_in_loop(retry_timer_);
  if (handler_id_ != 0) loop_->remove_in_loop(socket_.get(), handler_id_);
  socket_.reset();
  on_socket_ = nullptr;
}

void Acceptor::on_events_in_loop(uint32_t) {
  if (!deferred_) accept_in_loop();
}

// epoll does not report the other connections that wait again.
void Acceptor::failed_in_loop(const absl::Status& error) {
  log(LogLevel::kError, "a connection was not accepted: ", error.ToString());
  accept_later_in_loop();
}

void Acceptor::accept_later_in_loop() {
  loop_->cancel_in_loop(retry_timer_);
  retry_timer_ = loop_->schedule_in_loop(Clock::system().now() + kRetryAccept, [self = shared_from_this()] {
    EventLoop::handle_in_loop(*self, 0);
  });
}

void Acceptor::accept_in_loop() {
  for (bool first = true; socket_.valid(); first = false) {
    if (!first && loop_->turns_in_loop().spent()) {
      // epoll does not report these connections again.
      loop_->turns_in_loop().defer([self = shared_from_this()] {
        self->deferred_ = false;
        EventLoop::handle_in_loop(*self, 0);
      });
      deferred_ = true;
      return;
    }
    sockaddr_storage peer = {};
    socklen_t length = sizeof(peer);
    Descriptor socket = Descriptor::from([&] {
      return ::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&peer), &length,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (socket.valid()) {
      out_of_descriptors_ = false;
      on_socket_(std::move(socket), peer, length);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (is_shortage(errno)) {
      // The connection stays in the backlog, and epoll does not report it again. So try again after a while.
      if (!out_of_descriptors_) {
        log(LogLevel::kWarning, system_status("cannot accept connections for now", errno).message());
        out_of_descriptors_ = true;
      }
      accept_later_in_loop();
      return;
    }
    // Any other error concerns only the connection that was being accepted: go on with the next one.
  }
}

}  // namespace gradwire::transport
