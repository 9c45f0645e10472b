#include "gradwire/transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/host.h"
#include "gradwire/transport/common/loop_transport.h"
#include "gradwire/transport/tcp/arrival.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/socket/listening_socket.h"
#include "gradwire/transport/tcp/tcp_connection.h"
#include "gradwire/transport/tcp/tcp_context.h"

namespace gradwire::transport {
namespace {

class TcpTransport : public LoopTransport<TcpContext> {
 public:
  TcpTransport(TcpOptions options, std::shared_ptr<EventLoop> loop)
      : LoopTransport("tcp", std::make_shared<TcpContext>(std::move(options), std::move(loop))) {}

  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    GRADWIRE_ASSIGN_OR_RETURN(ListeningSockets sockets, listening_sockets());
    std::string address = join_host_port(own_host(sockets), sockets.port);
    // Another process may read this address on another host, where it would lead to a stranger.
    const TcpOptions& options = context_->options;
    if (!options.credentials->may_leave_host() && options.advertised_host.empty())
      address = in_network(address, network_id());
    // Shared with the accepted sockets that have not sent their preface yet.
    auto shared = std::make_shared<const AcceptHandler>(std::move(on_accept));
    GRADWIRE_RETURN_IF_ERROR(accept_on(
        std::move(sockets.descriptors),
        [context = context_, shared](Descriptor accepted, const sockaddr_storage& peer, socklen_t length) {
          Arrival::accept_in_loop(context, std::move(accepted), SocketAddress{peer, length}, shared);
        }));
    return address;
  }

  absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                      std::shared_ptr<ConnectionListener> listener,
                                                      absl::Duration timeout) override {
    const absl::Time deadline = Clock::system().now() + timeout;
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<HostAddress> addresses, parse_addresses(address));
    std::erase_if(addresses, [this](const HostAddress& each) {
      return each.numeric.has_value() && !context_->allows(*each.numeric);
    });
    if (addresses.empty())
      return leaves_host_error(absl::StrCat("cannot connect to ", without_network(address)));
    auto connection = std::make_shared<TcpConnection>(context_, without_network(address), random_token());
    connection->begin_with_preface();
    return begin(connection, [connection = connection.get(), addresses = std::move(addresses),
                              listener = std::move(listener), deadline]() mutable {
      connection->connect_in_loop(std::move(addresses), std::move(listener), deadline);
    });
  }

 private:
  absl::StatusOr<ListeningSockets> listening_sockets() const {
    const TcpOptions& options = context_->options;
    if (!options.credentials->may_leave_host()) {
      if (options.bind_address.empty()) return loopback_listening_sockets(options.port);
      GRADWIRE_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses,
                                resolve_bind_addresses(options.bind_address, options.port));
      if (!std::all_of(addresses.begin(), addresses.end(), is_loopback))
        return leaves_host_error(absl::StrCat("cannot listen on ", options.bind_address));
    }
    GRADWIRE_ASSIGN_OR_RETURN(ListeningSocket socket, listening_socket(options.bind_address, options.port));
    ListeningSockets sockets{.descriptors = {}, .port = socket.port};
    sockets.descriptors.push_back(std::move(socket.descriptor));
    return sockets;
  }

  // The host under which other processes reach `sockets`.
  std::string own_host(const ListeningSockets& sockets) const {
    const TcpOptions& options = context_->options;
    const std::string& host =
        options.advertised_host.empty() ? options.bind_address : options.advertised_host;
    if (!host.empty() || options.credentials->may_leave_host()) return advertised_host(host);
    SocketAddress bound;
    bound.length = sizeof(bound.storage);
    ::getsockname(sockets.descriptors.front().get(), bound.get(), &bound.length);
    return host_to_string(bound);
  }
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(TcpOptions options, std::shared_ptr<EventLoop> loop) {
  return std::make_unique<TcpTransport>(std::move(options), std::move(loop));
}

}  // namespace gradwire::transport
