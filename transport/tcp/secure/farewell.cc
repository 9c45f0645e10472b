#include "gradwire/transport/tcp/secure/farewell.h"

#include <sys/socket.h>

#include <cerrno>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradwire/base/clock.h"

namespace gradwire::transport {

void TcpFarewell::start_in_loop(absl::string_view last_bytes) {
  // The buffer of a new socket has room for these bytes.
  if (!last_bytes.empty()) {
    (void)::send(socket_.get(), last_bytes.data(), last_bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ::shutdown(socket_.get(), SHUT_WR);
  absl::StatusOr<uint64_t> id = loop_.add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    close_in_loop();
    return;
  }
  handler_id_ = *id;
  timer_ = loop_.schedule_in_loop(Clock::system().now() + kMaxTime, [self = shared_from_this()] {
    self->timer_ = 0;
    self->close_in_loop();
  });
}

void TcpFarewell::on_events_in_loop(uint32_t) {
  const absl::Span<char> scratch = loop_.scratch_in_loop();
  while (socket_.valid()) {
    const ssize_t got = ::recv(socket_.get(), scratch.data(), scratch.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got > 0) dropped_ += static_cast<std::size_t>(got);
    if (got <= 0 || dropped_ > kMaxBytes) close_in_loop();
  }
}

void TcpFarewell::close_in_loop() {
  absl::AnyInvocable<void()> done = std::exchange(done_, nullptr);
  cancel_in_loop();
  if (done != nullptr) done();
}

void TcpFarewell::cancel_in_loop() {
  const std::shared_ptr<TcpFarewell> self = shared_from_this();
  done_ = nullptr;
  loop_.cancel_in_loop(std::exchange(timer_, 0));
  if (handler_id_ != 0) loop_.remove_in_loop(socket_.get(), std::exchange(handler_id_, 0));
  socket_.reset();
}

}  // namespace gradwire::transport
