#include "gradwire/transport/tcp/tcp_transport.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/acceptor.h"
#include "gradwire/transport/loop_thread.h"
#include "gradwire/transport/tcp/address.h"
#include "gradwire/transport/tcp/arrival.h"
#include "gradwire/transport/tcp/listening_socket.h"
#include "gradwire/transport/tcp/tcp_connection.h"
#include "gradwire/transport/tcp/tcp_context.h"

namespace gradwire::transport {
namespace {

class TcpTransport : public Transport {
 public:
  TcpTransport(TcpOptions options, std::shared_ptr<EventLoop> loop)
      : context_(std::make_shared<TcpContext>(std::move(options), std::move(loop))) {}
  ~TcpTransport() override { shutdown(); }

  std::string name() const override { return "tcp"; }

  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    const TcpOptions& options = context_->options;
    GRADWIRE_ASSIGN_OR_RETURN(ListeningSocket socket, listening_socket(options.bind_address, options.port));
    std::string host = options.advertised_host.empty() ? options.bind_address : options.advertised_host;
    std::string address = join_host_port(advertised_host(host), socket.port);
    std::shared_ptr<Acceptor> acceptor;
    {
      MutexLock lock(mutex_);
      if (acceptor_ != nullptr) return absl::FailedPreconditionError("the tcp transport listens already");
      GRADWIRE_RETURN_IF_ERROR(start_locked());
      // Shared with what has not said yet what it is.
      auto shared = std::make_shared<const AcceptHandler>(std::move(on_accept));
      acceptor = std::make_shared<Acceptor>(
          context_->loop, std::move(socket.descriptor),
          [context = context_, shared](Descriptor accepted, const sockaddr_storage& peer, socklen_t length) {
            set_connection_options(accepted.get(), context->options);
            std::make_shared<Arrival>(context, std::move(accepted), to_string(SocketAddress{peer, length}),
                                      shared)
                ->start_in_loop();
          });
      acceptor_ = acceptor;
    }
    context_->loop->post([acceptor] { acceptor->start_in_loop(); });
    return address;
  }

  absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                      std::shared_ptr<ConnectionListener> listener,
                                                      absl::Duration timeout) override {
    absl::Time deadline = Clock::system().now() + timeout;
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<SocketAddress> candidates, resolve_addresses(address));
    {
      MutexLock lock(mutex_);
      GRADWIRE_RETURN_IF_ERROR(start_locked());
    }
    auto connection = std::make_shared<TcpConnection>(context_, address, random_token());
    connection->begin_with_preface();
    bool posted = context_->loop->post(
        [connection, candidates = std::move(candidates), listener = std::move(listener), deadline]() mutable {
          connection->connect_in_loop(std::move(candidates), std::move(listener), deadline);
        });
    if (!posted) return absl::UnavailableError("the tcp transport has shut down");
    return connection;
  }

  void shutdown() override {
    bool first;
    std::shared_ptr<Acceptor> acceptor;
    {
      MutexLock lock(mutex_);
      first = !shut_down_;
      shut_down_ = true;
      acceptor = std::move(acceptor_);
      if (!started_) return;
    }
    if (first) {
      context_->loop->post([context = context_, acceptor] {
        if (acceptor != nullptr) acceptor->stop_in_loop();
        context->shut_down_in_loop();
      });
    }
    MutexLock lock(joining_);
    context_->loop->run_until([this] { return context_->ended.load(); });
    own_thread_.end();
  }

 private:
  absl::Status start_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (shut_down_) return absl::UnavailableError("the tcp transport has shut down");
    if (started_) return absl::OkStatus();
    GRADWIRE_RETURN_IF_ERROR(own_thread_.provide(context_->loop, context_->options.wait));
    started_ = true;
    return absl::OkStatus();
  }

  const std::shared_ptr<TcpContext> context_;
  // When nobody else drives the loop. Started with mutex_ held, joined with joining_.
  LoopThread own_thread_;

  Mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Acceptor> acceptor_ ABSL_GUARDED_BY(mutex_);
  // Held while the thread is joined, so that a second shutdown() returns no sooner than the first.
  Mutex joining_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(TcpOptions options, std::shared_ptr<EventLoop> loop) {
  return std::make_unique<TcpTransport>(std::move(options), std::move(loop));
}

}  // namespace gradwire::transport
