#include "gradwire/transport/loopback/loopback_transport.h"

#include <atomic>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/random_id.h"
#include "gradwire/transport/loop_thread.h"
#include "gradwire/transport/refused.h"

namespace gradwire::transport {
namespace {

class LoopbackConnection;

struct LoopbackContext {
  LoopbackContext(BufferPoolOptions options, std::shared_ptr<EventLoop> given)
      : pool(options), loop(std::move(given)) {}

  BufferPool pool;

  Mutex mutex;
  std::string address ABSL_GUARDED_BY(mutex);
  Transport::AcceptHandler on_accept ABSL_GUARDED_BY(mutex);
  bool shut_down ABSL_GUARDED_BY(mutex) = false;
  // Set before the first connection.
  std::shared_ptr<EventLoop> loop;
  // The transport has shut down and every connection is gone.
  std::atomic<bool> ended{false};

  // Used by the loop's driver alone: every connection whose on_closed has not come.
  absl::flat_hash_set<std::shared_ptr<LoopbackConnection>> connections;
};

// One end. Both ends of a pair hold each other until they are closed.
class LoopbackConnection : public Connection, public std::enable_shared_from_this<LoopbackConnection> {
 public:
  LoopbackConnection(std::shared_ptr<LoopbackContext> context, std::string peer_address)
      : context_(std::move(context)), peer_address_(std::move(peer_address)) {}

  absl::StatusOr<uint64_t> send(Message message) override {
    std::vector<Buffer> copies;
    copies.reserve(message.buffers.size());
    for (const Buffer& buffer : message.buffers) {
      absl::StatusOr<Buffer> copy = context_->pool.allocate(buffer.size());
      if (!copy.ok()) return with_context(copy.status(), "a message to this process itself");
      if (buffer.size() > 0) std::memcpy(copy->data(), buffer.data(), buffer.size());
      copies.push_back(*std::move(copy));
    }
    message.buffers.swap(copies);
    auto shared = std::make_shared<Message>(std::move(message));
    MutexLock lock(mutex_);
    if (close_reason_.has_value()) {
      return absl::UnavailableError(
          absl::StrCat("connection with ", peer_address_, " is closed: ", close_reason_->message()));
    }
    context_->loop->post([self = shared_from_this(), shared] { self->deliver_to_peer(*shared); });
    return ++last_ticket_;
  }

  void capture(uint64_t) override {}

  void close(absl::Status reason, absl::Duration flush) override {
    MutexLock lock(mutex_);
    if (close_reason_.has_value()) return;
    close_reason_ = reason;
    discard_after_ = flush > absl::ZeroDuration() ? Clock::system().now() + flush : absl::InfinitePast();
    // Comes after what is queued.
    context_->loop->post([self = shared_from_this(), reason] { self->close_pair(reason); });
  }

  std::string peer_address() const override { return peer_address_; }

  // The following run in the loop.

  void open(std::shared_ptr<ConnectionListener> listener, std::shared_ptr<LoopbackConnection> peer) {
    listener_ = std::move(listener);
    peer_ = std::move(peer);
    context_->connections.insert(shared_from_this());
  }

  void fail_to_open(std::shared_ptr<ConnectionListener> listener, absl::Status reason) {
    listener_ = std::move(listener);
    finish(std::move(reason));
  }

  void shut_down() {
    finish(absl::CancelledError(absl::StrCat("the transport shut down; connection with ", peer_address_)));
  }

 private:
  void deliver_to_peer(Message& message) {
    if (peer_ == nullptr || peer_->listener_ == nullptr || peer_->is_closed()) return;
    {
      MutexLock lock(mutex_);
      if (close_reason_.has_value() && discard_after_ < Clock::system().now()) return;
    }
    // May close and so let go of either end.
    std::shared_ptr<LoopbackConnection> peer = peer_;
    std::shared_ptr<ConnectionListener> listener = peer->listener_;
    listener->on_message(*peer, std::move(message));
  }

  void close_pair(absl::Status reason) {
    std::shared_ptr<LoopbackConnection> peer = peer_;
    finish(std::move(reason));
    if (peer != nullptr) {
      peer->finish(absl::UnavailableError(
          absl::StrCat("connection with ", peer->peer_address_, ": the other end closed it")));
    }
  }

  void finish(absl::Status reason) {
    {
      MutexLock lock(mutex_);
      if (finished_) return;
      finished_ = true;
      if (close_reason_.has_value()) {
        reason = *close_reason_;
      } else {
        close_reason_ = reason;
      }
    }
    std::shared_ptr<LoopbackConnection> self = shared_from_this();
    std::shared_ptr<ConnectionListener> listener = std::move(listener_);
    peer_.reset();
    if (listener != nullptr) listener->on_closed(*this, std::move(reason));
    context_->connections.erase(self);
  }

  bool is_closed() {
    MutexLock lock(mutex_);
    return close_reason_.has_value();
  }

  const std::shared_ptr<LoopbackContext> context_;
  const std::string peer_address_;

  // Used by the loop's driver alone.
  std::shared_ptr<ConnectionListener> listener_;
  std::shared_ptr<LoopbackConnection> peer_;

  Mutex mutex_;
  std::optional<absl::Status> close_reason_ ABSL_GUARDED_BY(mutex_);
  absl::Time discard_after_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
};

class LoopbackTransport : public Transport {
 public:
  LoopbackTransport(BufferPoolOptions pool, std::shared_ptr<EventLoop> loop)
      : context_(std::make_shared<LoopbackContext>(pool, std::move(loop))) {}
  ~LoopbackTransport() override { shutdown(); }

  std::string name() const override { return "loopback"; }

  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    MutexLock lock(context_->mutex);
    if (context_->shut_down) return absl::UnavailableError("the loopback transport has shut down");
    if (context_->on_accept != nullptr)
      return absl::FailedPreconditionError("the loopback transport listens already");
    context_->on_accept = std::move(on_accept);
    context_->address = absl::StrCat(kPrefix, absl::Hex(random_id()));
    return context_->address;
  }

  absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                      std::shared_ptr<ConnectionListener> listener,
                                                      absl::Duration timeout) override {
    if (address.rfind(kPrefix, 0) != 0 || address.size() == sizeof(kPrefix) - 1) {
      return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is no loopback address"));
    }
    MutexLock lock(context_->mutex);
    if (context_->shut_down) return absl::UnavailableError("the loopback transport has shut down");
    GRADWIRE_RETURN_IF_ERROR(own_thread_.provide(context_->loop, WaitPolicy()));
    auto connection = std::make_shared<LoopbackConnection>(context_, address);
    context_->loop->post([context = context_, connection, listener, address] {
      open_in_loop(context, connection, listener, address);
    });
    return connection;
  }

  void shutdown() override {
    bool first;
    {
      MutexLock lock(context_->mutex);
      first = !std::exchange(context_->shut_down, true);
      if (context_->loop == nullptr) return;
    }
    if (first) {
      context_->loop->post([context = context_] {
        auto connections = context->connections;
        for (const auto& connection : connections) connection->shut_down();
        AcceptHandler on_accept;
        {
          MutexLock lock(context->mutex);
          on_accept.swap(context->on_accept);
        }
        // Behind what is posted already.
        context->loop->post([context] { context->ended = true; });
      });
    }
    MutexLock lock(joining_);
    context_->loop->run_until([this] { return context_->ended.load(); });
    own_thread_.end();
  }

 private:
  static constexpr char kPrefix[] = "loopback:";

  static void open_in_loop(const std::shared_ptr<LoopbackContext>& context,
                           const std::shared_ptr<LoopbackConnection>& connection,
                           const std::shared_ptr<ConnectionListener>& listener, const std::string& address) {
    AcceptHandler on_accept;
    {
      MutexLock lock(context->mutex);
      if (context->address == address && !context->shut_down) on_accept = context->on_accept;
    }
    if (on_accept == nullptr) {
      connection->fail_to_open(
          listener, refused_error(absl::StrCat("cannot connect to ", address, ": nobody listens there")));
      return;
    }
    auto accepted = std::make_shared<LoopbackConnection>(context, address);
    connection->open(listener, accepted);
    accepted->open(nullptr, connection);
    std::shared_ptr<ConnectionListener> accepted_listener = on_accept(accepted);
    const bool refused = accepted_listener == nullptr;
    accepted->open(std::move(accepted_listener), connection);
    if (refused) accepted->close(absl::PermissionDeniedError("refused"), absl::ZeroDuration());
  }

  const std::shared_ptr<LoopbackContext> context_;
  // When nobody else drives the loop; started with the context's mutex held.
  LoopThread own_thread_;
  // Held while the thread is joined, so that a second shutdown() returns no sooner than the first.
  Mutex joining_;
};

}  // namespace

std::unique_ptr<Transport> make_loopback_transport(BufferPoolOptions pool, std::shared_ptr<EventLoop> loop) {
  return std::make_unique<LoopbackTransport>(pool, std::move(loop));
}

}  // namespace gradwire::transport
