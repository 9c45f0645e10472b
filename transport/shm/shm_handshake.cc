// The handshake has two packets on the control socket. Each carries the descriptor of a ring and the limits
// of its sender:
// 1. The client connects, checks the user of the server process, and sends its hello.
// 2. The server checks the user of the client process and the hello, and answers with its own hello.
// 3. Each end has now both rings and passes them on (Outcome). From then on the connection itself handles
//    the socket.

#include "gradwire/transport/shm/shm_handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/transport/refused.h"

namespace gradwire::transport {
namespace {

// Interval of retries while the server's backlog is full. There is no event that reports a free slot.
constexpr absl::Duration kRetryConnect = absl::Milliseconds(2);
// Interval of attempts to go on while this process has no descriptor or memory left.
constexpr absl::Duration kRetryShortage = absl::Milliseconds(20);

}  // namespace

ShmHandshake::ShmHandshake(LoopConnection& connection, ShmContext& context, ControlSocket& socket, Done done)
    : connection_(connection), context_(context), socket_(socket), done_(std::move(done)) {}

void ShmHandshake::connect_in_loop(ShmAddress address, absl::Time deadline) {
  address_ = std::move(address);
  deadline_ = deadline;
  if (address_->is_of_this_host()) {
    try_connect_in_loop();
  } else {
    cannot_connect_in_loop("the address is on another host, or from an earlier boot of this host");
  }
}

// `refused`: no process listens at the address.
void ShmHandshake::cannot_connect_in_loop(absl::string_view cause, bool refused) {
  const std::string text = absl::StrCat("cannot connect to ", connection_.peer_address(), ": ", cause);
  connection_.finish_in_loop(refused ? refused_error(text) : absl::UnavailableError(text));
}

void ShmHandshake::try_connect_in_loop() {
  Descriptor socket =
      Descriptor::from([&] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  const UnixAddress to = abstract_address(*address_);
  if (!socket.valid() ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) != 0) {
    const int error = errno;
    const absl::Time next = Clock::system().now() + kRetryConnect;
    // EAGAIN: the backlog of the server is full.
    if (error == EAGAIN && next < deadline_) {
      timer_ = connection_.schedule_in_loop(next, [this] { try_connect_in_loop(); });
    } else {
      if (is_shortage(error)) {
        connection_.finish_in_loop(
            system_status(absl::StrCat("cannot connect to ", connection_.peer_address()), error));
        return;
      }
      cannot_connect_in_loop(error == EAGAIN ? "no answer in time" : std::strerror(error),
                             error == ECONNREFUSED);
    }
    return;
  }
  socket_.open(std::move(socket));
  // Any process on the host can listen on or connect to an abstract name, so each end checks the user of
  // the other before it passes or maps memory.
  if (const absl::Status peer = check_peer_in_loop(); !peer.ok()) {
    cannot_connect_in_loop(peer.message());
    return;
  }
  timer_ = connection_.schedule_in_loop(deadline_, [this] {
    if (!shortage_.ok()) {
      connection_.fail_in_loop(shortage_);
    } else {
      cannot_connect_in_loop("no answer in time");
    }
  });
  if (const absl::Status sent = send_hello_in_loop(); !sent.ok()) {
    connection_.fail_in_loop(sent);
    return;
  }
  watch_in_loop();
}

void ShmHandshake::accept_in_loop(Descriptor accepted) {
  socket_.open(std::move(accepted));
  if (const absl::Status peer = check_peer_in_loop(); !peer.ok()) {
    connection_.finish_in_loop(peer);
    return;
  }
  log(LogLevel::kDebug, "accepted a connection through shared memory");
  watch_in_loop();
}

absl::Status ShmHandshake::check_peer_in_loop() {
  const absl::StatusOr<uid_t> user = socket_.peer_user();
  if (!user.ok()) return user.status();
  return context_.users.check(
      *user, absl::StrCat("a connection through shared memory (", connection_.peer_address(), ")"));
}

bool ShmHandshake::watch_in_loop() {
  absl::StatusOr<uint64_t> id = connection_.loop().add_in_loop(
      socket_.descriptor(), connection_.keep<EventHandler>(this), /*both_ways=*/false);
  if (id.ok()) {
    handler_id_ = *id;
  } else {
    connection_.finish_in_loop(id.status());
  }
  return id.ok();
}

void ShmHandshake::end_in_loop() {
  connection_.loop().cancel_in_loop(timer_);
  connection_.loop().cancel_in_loop(std::exchange(retry_timer_, 0));
  if (handler_id_ != 0) {
    connection_.loop().remove_in_loop(socket_.descriptor(), std::exchange(handler_id_, 0));
  }
  own_ring_.reset();
  hello_.reset();
  (void)context_.spare.occupy();
}

// Creates the ring of this end and passes it to the peer.
absl::Status ShmHandshake::send_hello_in_loop() {
  const ShmOptions& options = context_.options;
  Descriptor descriptor;
  GRADWIRE_ASSIGN_OR_RETURN(SharedMemory memory,
                            SharedMemory::create(ring_memory_bytes(options.ring_bytes), false, descriptor));
  memory.keep_from_children();
  own_ring_.emplace(std::move(memory), options.ring_bytes);
  HelloPacket hello;
  hello.ring_bytes = options.ring_bytes;
  hello.max_arena_bytes = options.max_arena_bytes;
  if (socket_.send(&hello, sizeof(hello), descriptor.get())) return absl::OkStatus();
  return absl::UnavailableError("the peer closed the connection during the handshake");
}

void ShmHandshake::failed_in_loop(const absl::Status& error) { connection_.fail_in_loop(error); }

void ShmHandshake::on_events_in_loop(uint32_t) {
  // The hello waits for its retry.
  if (hello_.has_value()) return;
  ControlPacket packet;
  switch (context_.receive_in_loop(socket_, packet)) {
    case ControlSocket::Receipt::kPacket:
      hello_ = std::move(packet);
      take_hello_in_loop();
      return;
    case ControlSocket::Receipt::kNothing:
      return;
    case ControlSocket::Receipt::kEnd:
      connection_.lost_in_loop("the peer closed the connection during the handshake");
      return;
    case ControlSocket::Receipt::kInvalid:
      connection_.fail_in_loop(absl::InvalidArgumentError("malformed packet instead of a hello"));
      return;
    case ControlSocket::Receipt::kNoDescriptors:
      go_on_later_in_loop(context_.shortage_in_loop("cannot receive the shared memory of the peer"));
      return;
  }
}

void ShmHandshake::take_hello_in_loop() {
  const absl::Status accepted = accept_hello_in_loop(*hello_);
  if (is_local_shortage(accepted)) {
    go_on_later_in_loop(accepted);
  } else if (!accepted.ok()) {
    connection_.fail_in_loop(accepted);
  }
}

void ShmHandshake::go_on_later_in_loop(const absl::Status& shortage) {
  if (shortage_.ok())
    log(LogLevel::kWarning, "the connection with ", connection_.peer_address(),
        " waits: ", shortage.message());
  shortage_ = shortage;
  connection_.loop().cancel_in_loop(retry_timer_);
  retry_timer_ = connection_.schedule_in_loop(Clock::system().now() + kRetryShortage, [this] {
    retry_timer_ = 0;
    if (hello_.has_value()) {
      take_hello_in_loop();
    } else {
      on_events_in_loop(0);
    }
  });
}

absl::Status ShmHandshake::accept_hello_in_loop(const ControlPacket& packet) {
  const absl::optional<HelloPacket> hello = packet.as<HelloPacket>(1);
  if (!hello.has_value())
    return absl::InvalidArgumentError("malformed hello; the peer may not be a Gradwire worker");
  if (hello->version != HelloPacket().version || !is_ring_size(hello->ring_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("invalid hello: got version ", hello->version, " and a ring of ", hello->ring_bytes,
                     " bytes, expected version ", HelloPacket().version, " and a power of two from ",
                     kMinRingBytes, " to ", kMaxRingBytes));
  }
  absl::StatusOr<SharedMemory> memory =
      SharedMemory::adopt(packet.descriptors[0], ring_memory_bytes(hello->ring_bytes), false);
  if (!memory.ok()) return memory.status();
  memory->keep_from_children();
  // The server (without an address) answers with its own hello.
  if (!address_.has_value()) GRADWIRE_RETURN_IF_ERROR(send_hello_in_loop());
  Outcome outcome = {*std::move(own_ring_), RingConsumer(*std::move(memory), hello->ring_bytes),
                     std::min<uint64_t>(context_.options.max_arena_bytes, hello->max_arena_bytes)};
  // Before `done_`: it registers the socket with the loop again, for the connection.
  end_in_loop();
  done_(std::move(outcome));
  return absl::OkStatus();
}

}  // namespace gradwire::transport
