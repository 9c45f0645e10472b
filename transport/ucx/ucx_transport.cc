#include "gradwire/transport/ucx/ucx_transport.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/loop_thread.h"
#include "gradwire/transport/tcp/address.h"
#include "gradwire/transport/ucx/ucx_connection.h"
#include "gradwire/transport/ucx/ucx_context.h"
#include "gradwire/transport/ucx/ucx_listener.h"
#include "gradwire/transport/ucx/ucx_worker.h"

namespace gradwire::transport {
namespace {

class UcxTransport : public Transport {
 public:
  UcxTransport(UcxOptions options, std::shared_ptr<EventLoop> loop)
      : context_(std::make_shared<UcxContext>(std::move(options), std::move(loop))) {}
  ~UcxTransport() override { shutdown(); }

  std::string name() const override { return "ucx"; }

  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    {
      MutexLock lock(mutex_);
      if (listening_) return absl::FailedPreconditionError("the ucx transport listens already");
      GRADWIRE_RETURN_IF_ERROR(start_locked());
      listening_ = true;
    }
    // UCX is called on the loop's driver alone, and the port is known only when it has been.
    absl::StatusOr<int> port = absl::UnavailableError("the ucx transport has shut down");
    std::atomic<bool> done{false};
    const bool posted =
        context_->loop->post([this, &port, &done, on_accept = std::move(on_accept)]() mutable {
          port = context_->listen_in_loop(std::move(on_accept));
          done = true;
        });
    if (posted) context_->loop->run_until([&done] { return done.load(); });
    if (!port.ok()) {
      MutexLock lock(mutex_);
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
    const absl::Time deadline = Clock::system().now() + timeout;
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<SocketAddress> candidates, resolve_addresses(address));
    {
      MutexLock lock(mutex_);
      GRADWIRE_RETURN_IF_ERROR(start_locked());
    }
    auto connection = std::make_shared<UcxConnection>(context_, address);
    const bool posted = context_->loop->post(
        [connection, candidates = std::move(candidates), listener = std::move(listener), deadline]() mutable {
          connection->connect_in_loop(std::move(candidates), std::move(listener), deadline);
        });
    if (!posted) return absl::UnavailableError("the ucx transport has shut down");
    return connection;
  }

  void shutdown() override {
    bool first;
    {
      MutexLock lock(mutex_);
      first = !shut_down_;
      shut_down_ = true;
      if (!started_) return;
    }
    if (first) context_->loop->post([context = context_] { context->shut_down_in_loop(); });
    MutexLock lock(joining_);
    context_->loop->run_until([this] { return context_->ended.load(); });
    own_thread_.end();
  }

 private:
  absl::Status start_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (shut_down_) return absl::UnavailableError("the ucx transport has shut down");
    if (started_) return absl::OkStatus();
    GRADWIRE_RETURN_IF_ERROR(context_->start());
    GRADWIRE_RETURN_IF_ERROR(own_thread_.provide(context_->loop, context_->options.wait));
    context_->loop->post([context = context_] { context->start_in_loop(); });
    started_ = true;
    return absl::OkStatus();
  }

  const std::shared_ptr<UcxContext> context_;
  // When nobody else drives the loop. Started with mutex_ held, joined with joining_.
  LoopThread own_thread_;

  Mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool listening_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  // Held while the thread is joined, so that a second shutdown() returns no sooner than the first.
  Mutex joining_;
};

}  // namespace

std::unique_ptr<Transport> make_ucx_transport(UcxOptions options, std::shared_ptr<EventLoop> loop) {
  return std::make_unique<UcxTransport>(std::move(options), std::move(loop));
}

absl::Status probe_ucx() { return UcxWorker::create("").status(); }

}  // namespace gradwire::transport
