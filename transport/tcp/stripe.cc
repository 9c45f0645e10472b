#include "gradwire/transport/tcp/stripe.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "gradwire/transport/tcp/stripes.h"

namespace gradwire::transport {
namespace {

constexpr int kMaxDuePlaces = 16;

}  // namespace

void Stripe::on_events_in_loop(uint32_t events) {
  if (const std::shared_ptr<TcpStripes> stripes = stripes_.lock()) stripes->on_events_in_loop(*this, events);
}

void Stripe::failed_in_loop(const absl::Status& error) {
  if (const std::shared_ptr<TcpStripes> stripes = stripes_.lock()) stripes->fail_in_loop(error);
}

void Stripe::prove_in_loop(EventLoop& loop, std::unique_ptr<security::SocketHandshake> handshake,
                           absl::Time deadline, absl::AnyInvocable<void(const absl::Status& status)> done) {
  loop.remove_in_loop(socket.get(), std::exchange(handler_id, 0));
  handshake_ = std::make_shared<TcpHandshake>(loop, std::move(socket), std::move(handshake));
  const std::shared_ptr<TcpHandshake> kept = handshake_;
  kept->start_in_loop(deadline, [this, self = shared_from_this(), &loop, done = std::move(done)](
                                    absl::Status status, SecuredSocket secured) mutable {
    handshake_.reset();
    socket = std::move(secured.socket);
    EventLoop::run_in_loop(*self, [&] {
      if (status.ok()) {
        const absl::StatusOr<uint64_t> id = loop.add_in_loop(socket.get(), self);
        status = id.status();
        if (id.ok()) handler_id = *id;
      }
      done(status);
    });
  });
}

void Stripe::cancel_proof_in_loop() {
  if (const std::shared_ptr<TcpHandshake> handshake = std::exchange(handshake_, nullptr))
    handshake->cancel_in_loop();
}

Stripe::Progress Stripe::read_in_loop(std::atomic<uint64_t>& arrived) {
  iovec places[kMaxDuePlaces];
  int count = 0;
  for (; count < kMaxDuePlaces && count < static_cast<int>(due.size()); ++count) {
    const ShareMemory& place = due[static_cast<std::size_t>(count)];
    places[count] = {place.data, place.size};
  }
  // Bytes that arrive before their place is known stay in the socket. Only check for the end of the stream.
  char byte;
  const ssize_t result =
      count == 0 ? ::recv(socket.get(), &byte, 1, MSG_PEEK) : ::readv(socket.get(), places, count);
  if (result == 0) return Progress::kEnded;
  if (result < 0 && errno == EINTR) return count == 0 ? Progress::kNothing : Progress::kMore;
  if (result < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
    error = errno;
    return Progress::kEnded;
  }
  if (count == 0) return Progress::kNothing;
  if (result < 0) {
    readable = false;
    return Progress::kNothing;
  }
  auto bytes = static_cast<std::size_t>(result);
  arrived.fetch_add(bytes, std::memory_order_relaxed);
  while (bytes > 0) {
    ShareMemory& place = due.front();
    const std::size_t step = std::min(bytes, place.size);
    place.data += step;
    place.size -= step;
    bytes -= step;
    if (place.size == 0) due.pop_front();
  }
  return due.empty() ? Progress::kComplete : Progress::kMore;
}

}  // namespace gradwire::transport
