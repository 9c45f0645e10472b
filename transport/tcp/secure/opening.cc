#include "gradwire/transport/tcp/secure/opening.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"

namespace gradwire::transport {
namespace {

constexpr absl::Duration kMaxPause = absl::Seconds(1);

}  // namespace

void TcpOpening::start_in_loop(absl::Time deadline, Done done) {
  deadline_ = deadline;
  done_ = std::move(done);
  dial_in_loop();
}

void TcpOpening::run_in_loop(absl::FunctionRef<void()> step) noexcept {
  try {
    step();
  } catch (...) {
    const absl::Status error = caught("connecting");
    Done done = std::exchange(done_, nullptr);
    cancel_in_loop();
    if (done != nullptr) done(error);
  }
}

void TcpOpening::dial_in_loop() {
  dial_ = std::make_shared<TcpDial>(loop_, options_.peer, options_.addresses);
  dial_->start_in_loop(deadline_, [self = shared_from_this()](absl::StatusOr<Descriptor> socket) {
    if (socket.ok()) {
      self->run_in_loop([&] { self->connected_in_loop(*std::move(socket)); });
    } else {
      self->finish_in_loop(socket.status());
    }
  });
}

void TcpOpening::connected_in_loop(Descriptor socket) {
  if (const absl::Status prepared = options_.prepare(socket.get()); !prepared.ok()) {
    socket.reset();
    lost_in_loop(prepared);
    return;
  }
  security::ConnectionFacts facts = options_.facts;
  facts.peer_address = to_string(address());
  std::unique_ptr<security::SocketHandshake> handshake = options_.credentials->connected(socket.get(), facts);
  if (handshake == nullptr) {
    finish_in_loop(SecuredSocket{.socket = std::move(socket)});
    return;
  }
  // The buffer of a new socket has room for these bytes.
  if (::send(socket.get(), options_.preface.data(), options_.preface.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(options_.preface.size())) {
    const int error = errno;
    handshake.reset();
    lost_in_loop(absl::UnavailableError(std::strerror(error)));
    return;
  }
  handshake_ = std::make_shared<TcpHandshake>(loop_, std::move(socket), std::move(handshake));
  handshake_->start_in_loop(deadline_,
                            [self = shared_from_this()](const absl::Status& status, SecuredSocket secured) {
                              self->handshake_.reset();
                              if (status.ok()) {
                                self->finish_in_loop(std::move(secured));
                              } else {
                                self->run_in_loop([&] { self->lost_in_loop(status); });
                              }
                            });
}

void TcpOpening::lost_in_loop(const absl::Status& reason) {
  const absl::Time again = Clock::system().now() + pause_;
  if (!absl::IsUnavailable(reason) || again >= deadline_) {
    // Other errors of a handshake name the peer.
    finish_in_loop(absl::IsUnavailable(reason)
                       ? with_context(reason, absl::StrCat("cannot connect to ", options_.peer))
                       : reason);
    return;
  }
  pause_ = std::min(2 * pause_, kMaxPause);
  timer_ = loop_.schedule_in_loop(again, [self = shared_from_this()] {
    self->timer_ = 0;
    self->run_in_loop([&self] { self->dial_in_loop(); });
  });
}

// `done_` is taken out first: it is called at most once, and it may destroy the owner of this object.
void TcpOpening::finish_in_loop(absl::StatusOr<SecuredSocket> result) {
  if (Done done = std::exchange(done_, nullptr)) done(std::move(result));
}

void TcpOpening::cancel_in_loop() {
  const std::shared_ptr<TcpOpening> self = shared_from_this();
  done_ = nullptr;
  if (dial_ != nullptr) dial_->cancel_in_loop();
  if (handshake_ != nullptr) handshake_->cancel_in_loop();
  loop_.cancel_in_loop(std::exchange(timer_, 0));
}

}  // namespace gradwire::transport
