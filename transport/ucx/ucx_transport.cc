#include "gradwire/transport/ucx/ucx_transport.h"

#include <atomic>
#include <utility>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/common/loop_transport.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/ucx/ucx_connection.h"
#include "gradwire/transport/ucx/ucx_context.h"
#include "gradwire/transport/ucx/ucx_listener.h"
#include "gradwire/transport/ucx/ucx_worker.h"

namespace gradwire::transport {
namespace {

class UcxTransport : public LoopTransport<UcxContext> {
 public:
  UcxTransport(UcxOptions options, std::shared_ptr<EventLoop> loop)
      : LoopTransport("ucx", std::make_shared<UcxContext>(std::move(options), std::move(loop))) {}

  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    GRADWIRE_RETURN_IF_ERROR(check_ucx_credentials(context_->options.credentials->kind()));
    if (listening_.exchange(true)) {
      return absl::FailedPreconditionError("listen() was called twice on the ucx transport");
    }
    // UCX may be called only on the loop's driver, so wait until that has created the listener and knows the
    // port.
    absl::StatusOr<int> port = shut_down_error();
    std::atomic<bool> done{false};
    if (const absl::Status started = start(); !started.ok()) {
      port = started;
    } else if (context_->loop->post([this, &port, &done, on_accept = std::move(on_accept)]() mutable {
                 // `port` and `done` live on the stack of listen(), which waits for the task.
                 port = context_->listen_in_loop(std::move(on_accept));
                 done = true;
               })) {
      context_->loop->run_until([&done] { return done.load(); });
    }
    if (!port.ok()) {
      listening_ = false;
      return port.status();
    }
    const UcxOptions& options = context_->options;
    return join_host_port(
        advertised_host(options.advertised_host.empty() ? options.bind_address : options.advertised_host),
        *port);
  }

  absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                      std::shared_ptr<ConnectionListener> listener,
                                                      absl::Duration timeout) override {
    GRADWIRE_RETURN_IF_ERROR(check_ucx_credentials(context_->options.credentials->kind()));
    const absl::Time deadline = Clock::system().now() + timeout;
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<HostAddress> addresses, parse_addresses(address));
    auto connection = std::make_shared<UcxConnection>(context_, address);
    return begin(connection, [connection = connection.get(), addresses = std::move(addresses),
                              listener = std::move(listener), deadline]() mutable {
      connection->connect_in_loop(std::move(addresses), std::move(listener), deadline);
    });
  }

 private:
  absl::Status prepare(LoopThread& own_thread) override {
    GRADWIRE_RETURN_IF_ERROR(context_->start());
    GRADWIRE_RETURN_IF_ERROR(LoopTransport::prepare(own_thread));
    context_->loop->post([context = context_] { context->start_in_loop(); });
    return absl::OkStatus();
  }

  std::atomic<bool> listening_{false};
};

}  // namespace

std::unique_ptr<Transport> make_ucx_transport(UcxOptions options, std::shared_ptr<EventLoop> loop) {
  return std::make_unique<UcxTransport>(std::move(options), std::move(loop));
}

absl::Status probe_ucx() { return UcxWorker::create("").status(); }

}  // namespace gradwire::transport
