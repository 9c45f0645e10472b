#include "gradwire/transport/shm/shm_transport.h"

#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/file_size_limit.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/transport/common/loop_transport.h"
#include "gradwire/transport/shm/memory/ring.h"
#include "gradwire/transport/shm/memory/shared_memory.h"
#include "gradwire/transport/shm/shm_address.h"
#include "gradwire/transport/shm/shm_connection.h"
#include "gradwire/transport/shm/shm_context.h"

namespace gradwire::transport {
namespace {

// The address of the peer for messages and logs.
std::string name_of_peer(const Descriptor& socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return "shm:unknown process";
  return absl::StrCat("shm:process ", peer.pid);
}

class ShmTransport : public LoopTransport<ShmContext> {
 public:
  ShmTransport(ShmOptions options, std::shared_ptr<EventLoop> loop)
      : LoopTransport("shm", std::make_shared<ShmContext>(std::move(options), std::move(loop))) {}

  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    GRADWIRE_ASSIGN_OR_RETURN(const ShmAddress address, new_shm_address());
    GRADWIRE_ASSIGN_OR_RETURN(Descriptor socket, listen_at(address));
    // Shared with the connections that have not finished their handshake.
    // The accept handler is called only after the handshake.
    auto shared = std::make_shared<const AcceptHandler>(std::move(on_accept));
    GRADWIRE_RETURN_IF_ERROR(
        accept_on(std::move(socket),
                  [context = context_, shared](Descriptor accepted, const sockaddr_storage&, socklen_t) {
                    auto connection = std::make_shared<ShmConnection>(context, name_of_peer(accepted));
                    connection->accept_in_loop(std::move(accepted), shared);
                  }));
    return address.to_string();
  }

  bool may_reach(const std::string& address) const override { return is_local_shm_address(address); }

  absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                      std::shared_ptr<ConnectionListener> listener,
                                                      absl::Duration timeout) override {
    const absl::Time deadline = Clock::system().now() + timeout;
    GRADWIRE_ASSIGN_OR_RETURN(ShmAddress parsed, parse_shm_address(address));
    auto connection = std::make_shared<ShmConnection>(context_, address);
    return begin(connection, [connection = connection.get(), parsed = std::move(parsed),
                              listener = std::move(listener), deadline]() mutable {
      connection->connect_in_loop(std::move(parsed), std::move(listener), deadline);
    });
  }

 private:
  absl::Status prepare(LoopThread& own_thread) override {
    if (is_ring_size(context_->options.ring_bytes)) return LoopTransport::prepare(own_thread);
    return absl::InvalidArgumentError(absl::StrCat("invalid ring_bytes: got ", context_->options.ring_bytes,
                                                   ", expected a power of two from ", kMinRingBytes, " to ",
                                                   kMaxRingBytes));
  }
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(ShmOptions options, std::shared_ptr<EventLoop> loop) {
  return std::make_unique<ShmTransport>(std::move(options), std::move(loop));
}

// Tries each step that may be forbidden on a host (containers, security modules): an abstract socket,
// sealed memory, and a second mapping of it that shows the same bytes.
absl::Status probe_shm() {
  // As much as a connection needs.
  const std::size_t bytes = ring_memory_bytes(ShmOptions().ring_bytes);
  if (bytes > file_size_limit()) {
    // It applies to memory files too, and stays as it is. So this is not a shortage that passes.
    return absl::ResourceExhaustedError(
        system_status(absl::StrCat("cannot create shared memory of ", bytes, " bytes"), EFBIG).message());
  }
  GRADWIRE_ASSIGN_OR_RETURN(const ShmAddress address, new_shm_address());
  GRADWIRE_ASSIGN_OR_RETURN(const Descriptor socket, listen_at(address));
  Descriptor descriptor;
  GRADWIRE_ASSIGN_OR_RETURN(const SharedMemory own, SharedMemory::create(bytes, false, descriptor));
  const absl::StatusOr<SharedMemory> other = SharedMemory::adopt(descriptor, bytes, false);
  if (is_local_shortage(other.status())) return other.status();
  if (!other.ok()) return absl::UnavailableError(other.status().message());
  own.data()[0] = 1;
  if (other->data()[0] != 1)
    return absl::UnavailableError("two mappings of shared memory do not show the same bytes");
  return absl::OkStatus();
}

bool is_local_shm_address(absl::string_view address) {
  const absl::StatusOr<ShmAddress> parsed = parse_shm_address(address);
  return parsed.ok() && parsed->is_of_this_host();
}

}  // namespace gradwire::transport
