#include "gradwire/transport/tcp/tcp_transport.h"

#include <utility>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/common/loop_transport.h"
#include "gradwire/transport/tcp/address.h"
#include "gradwire/transport/tcp/arrival.h"
#include "gradwire/transport/tcp/listening_socket.h"
#include "gradwire/transport/tcp/tcp_connection.h"
#include "gradwire/transport/tcp/tcp_context.h"

namespace gradwire::transport {
namespace {

class TcpTransport : public LoopTransport<TcpContext> {
 public:
  TcpTransport(TcpOptions options, std::shared_ptr<EventLoop> loop)
      : LoopTransport("tcp", std::make_shared<TcpContext>(std::move(options), std::move(loop))) {}

  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    const TcpOptions& options = context_->options;
    GRADWIRE_ASSIGN_OR_RETURN(ListeningSocket socket, listening_socket(options.bind_address, options.port));
    std::string host = options.advertised_host.empty() ? options.bind_address : options.advertised_host;
    std::string address = join_host_port(advertised_host(host), socket.port);
    // Shared with the accepted sockets that have not sent their preface yet.
    auto shared = std::make_shared<const AcceptHandler>(std::move(on_accept));
    GRADWIRE_RETURN_IF_ERROR(accept_on(
        std::move(socket.descriptor),
        [context = context_, shared](Descriptor accepted, const sockaddr_storage& peer, socklen_t length) {
          set_connection_options(accepted.get(), context->options);
          std::make_shared<Arrival>(context, std::move(accepted), to_string(SocketAddress{peer, length}),
                                    shared)
              ->start_in_loop();
        }));
    return address;
  }

  absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                      std::shared_ptr<ConnectionListener> listener,
                                                      absl::Duration timeout) override {
    absl::Time deadline = Clock::system().now() + timeout;
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<SocketAddress> candidates, resolve_addresses(address));
    auto connection = std::make_shared<TcpConnection>(context_, address, random_token());
    connection->begin_with_preface();
    return begin(connection, [connection, candidates = std::move(candidates), listener = std::move(listener),
                              deadline]() mutable {
      connection->connect_in_loop(std::move(candidates), std::move(listener), deadline);
    });
  }
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(TcpOptions options, std::shared_ptr<EventLoop> loop) {
  return std::make_unique<TcpTransport>(std::move(options), std::move(loop));
}

}  // namespace gradwire::transport
