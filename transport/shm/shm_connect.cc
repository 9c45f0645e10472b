// The part of ShmConnection that establishes it.

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/transport/refused.h"
#include "gradwire/transport/shm/shm_connection.h"

namespace gradwire::transport {
namespace {

// The listening process has as many to accept as its system lets wait. Nothing tells when that has changed.
constexpr absl::Duration kRetryConnect = absl::Milliseconds(2);

}  // namespace

void ShmConnection::connect_in_loop(ShmAddress address, std::shared_ptr<ConnectionListener> listener,
                                    absl::Time deadline) {
  context_->connections.insert(shared_from_this());
  listener_ = std::move(listener);
  connect_to_ = std::move(address);
  connect_deadline_ = deadline;
  if (context_->shutting_down) {
    finish_in_loop(
        absl::CancelledError(absl::StrCat("the transport shut down; connection with ", peer_address_)));
    return;
  }
  if (!connect_to_.is_of_this_host()) {
    finish_in_loop(
        absl::UnavailableError(absl::StrCat("cannot connect to ", peer_address_, ": it is on another host")));
    return;
  }
  try_connect_in_loop();
}

void ShmConnection::try_connect_in_loop() {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosed) return;
  }
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const UnixAddress to = abstract_address(connect_to_);
  if (!socket.valid() ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) != 0) {
    const absl::Time next = Clock::system().now() + kRetryConnect;
    if (errno == EAGAIN && next < connect_deadline_) {
      connect_timer_ = context_->loop->schedule_in_loop(
          next, [self = shared_from_this()] { self->try_connect_in_loop(); });
      return;
    }
    const int error = errno;
    const char* const cause = error == EAGAIN ? "no answer in time" : std::strerror(error);
    const std::string text = absl::StrCat("cannot connect to ", peer_address_, ": ", cause);
    finish_in_loop(error == ECONNREFUSED ? refused_error(text) : absl::UnavailableError(text));
    return;
  }
  socket_->open(std::move(socket));
  const absl::Status peer = socket_->check_peer();
  if (!peer.ok()) {
    finish_in_loop(
        absl::UnavailableError(absl::StrCat("cannot connect to ", peer_address_, ": ", peer.message())));
    return;
  }
  connect_timer_ = context_->loop->schedule_in_loop(connect_deadline_, [self = shared_from_this()] {
    self->finish_in_loop(absl::UnavailableError(
        absl::StrCat("cannot connect to ", self->peer_address_, ": no answer in time")));
  });
  if (say_hello_in_loop()) watch_socket_in_loop();
}

void ShmConnection::accept_in_loop(Descriptor socket,
                                   std::shared_ptr<const Transport::AcceptHandler> on_accept) {
  context_->connections.insert(shared_from_this());
  on_accept_ = std::move(on_accept);
  socket_->open(std::move(socket));
  const absl::Status peer = socket_->check_peer();
  if (!peer.ok()) {
    log(LogLevel::kWarning, "a connection through shared memory was refused: ", peer.message());
    finish_in_loop(peer);
    return;
  }
  log(LogLevel::kDebug, "accepted a connection through shared memory");
  connect_timer_ = context_->loop->schedule_in_loop(
      Clock::system().now() + context_->options.handshake_timeout,
      [self = shared_from_this()] { self->finish_in_loop(self->unavailable("it has not said hello")); });
  watch_socket_in_loop();
}

bool ShmConnection::watch_socket_in_loop() {
  absl::StatusOr<uint64_t> id =
      context_->loop->add_in_loop(socket_->descriptor(), shared_from_this(), /*both_ways=*/false);
  if (!id.ok()) {
    finish_in_loop(id.status());
    return false;
  }
  handler_id_ = *id;
  return true;
}

// Makes this end's ring and hands it over. False when the connection has ended.
bool ShmConnection::say_hello_in_loop() {
  const std::size_t ring_bytes = context_->options.ring_bytes;
  Descriptor descriptor;
  absl::StatusOr<SharedMemory> memory =
      SharedMemory::create(ring_memory_bytes(ring_bytes), false, descriptor);
  if (!memory.ok()) {
    finish_in_loop(with_context(memory.status(), absl::StrCat("connection with ", peer_address_)));
    return false;
  }
  own_ring_.emplace(*std::move(memory), ring_bytes);
  HelloPacket hello;
  hello.ring_bytes = ring_bytes;
  hello.max_arena_bytes = context_->options.max_arena_bytes;
  if (!socket_->send(&hello, sizeof(hello), descriptor.get())) {
    finish_in_loop(unavailable("the other end closed it"));
    return false;
  }
  return true;
}

void ShmConnection::hear_hello_in_loop(ControlPacket& packet) {
  const absl::optional<HelloPacket> hello = packet.as<HelloPacket>(1);
  absl::Status wrong;
  if (!hello.has_value()) {
    wrong = absl::InvalidArgumentError("what came is no hello");
  } else if (hello->version != HelloPacket().version || !is_ring_size(hello->ring_bytes)) {
    wrong = absl::InvalidArgumentError(absl::StrCat("a hello of version ", hello->version, " with a ring of ",
                                                    hello->ring_bytes, " bytes came"));
  } else {
    absl::StatusOr<SharedMemory> memory =
        SharedMemory::adopt(packet.descriptors[0], ring_memory_bytes(hello->ring_bytes), false);
    wrong = memory.status();
    if (memory.ok()) incoming_.emplace(*std::move(memory), hello->ring_bytes);
  }
  if (!wrong.ok()) {
    finish_in_loop(with_context(wrong, absl::StrCat("connection with ", peer_address_)));
    return;
  }
  context_->loop->cancel_in_loop(connect_timer_);
  if (on_accept_ != nullptr && !say_hello_in_loop()) return;

  ArenaOwner::Options arena;
  arena.max_bytes = std::min<uint64_t>(context_->options.max_arena_bytes, hello->max_arena_bytes);
  arena.max_idle_bytes = context_->options.max_idle_arena_bytes;
  arena.announce = [socket = socket_](const SegmentPacket& segment, const Descriptor& memory) {
    return socket->send(&segment, sizeof(segment), memory.get());
  };
  arena.retract = [socket = socket_](const DropPacket& drop) { return socket->send(&drop, sizeof(drop)); };
  arena_storage_ = std::make_shared<ArenaOwner>(std::move(arena));
  arena_.store(arena_storage_.get(), std::memory_order_release);
  established_in_loop();
}

void ShmConnection::established_in_loop() {
  connected_ = true;
  bool drained;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kConnecting) state_ = State::kOpen;
    outgoing_.swap(own_ring_);
    drained = state_ == State::kClosing && queue_.empty();
  }
  if (drained) {
    finish_in_loop(absl::OkStatus());
    return;
  }
  if (on_accept_ != nullptr) {
    listener_ = (*on_accept_)(shared_from_this());
    on_accept_.reset();
    if (listener_ == nullptr) {
      finish_in_loop(absl::PermissionDeniedError("refused"));
      return;
    }
  }
  write_queued();
}

}  // namespace gradwire::transport
