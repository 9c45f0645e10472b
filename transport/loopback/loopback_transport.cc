#include "gradwire/transport/loopback/loopback_transport.h"

#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/random_id.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/common/loop_transport.h"
#include "gradwire/transport/refused.h"

namespace gradwire::transport {
namespace {

constexpr char kPrefix[] = "loopback:";

struct LoopbackContext : LoopContext {
  LoopbackContext(BufferPoolOptions pool_options, std::shared_ptr<EventLoop> given_loop)
      : LoopContext(std::make_shared<BufferPool>(pool_options), std::move(given_loop)) {}

  void shut_down_in_loop() override {
    Transport::AcceptHandler dropped;
    {
      MutexLock lock(mutex);
      dropped.swap(on_accept);
    }
    LoopContext::shut_down_in_loop();
  }

  // How the transport's own thread waits.
  struct {
    WaitPolicy wait;
  } options;

  Mutex mutex;
  std::string address ABSL_GUARDED_BY(mutex);
  Transport::AcceptHandler on_accept ABSL_GUARDED_BY(mutex);
};

// One end. Both ends of a pair hold each other until they are closed.
class LoopbackConnection : public LoopConnection {
 public:
  LoopbackConnection(std::shared_ptr<LoopbackContext> context, std::string peer_address)
      : LoopConnection(context, std::move(peer_address)), context_(std::move(context)) {}

  absl::StatusOr<uint64_t> send(Message message) override {
    for (Buffer& buffer : message.buffers) {
      absl::StatusOr<Buffer> copy = context_->pool->allocate(buffer.size());
      if (!copy.ok()) return with_context(copy.status(), "a message to this process itself");
      if (buffer.size() > 0) std::memcpy(copy->data(), buffer.data(), buffer.size());
      buffer = *std::move(copy);
    }
    MutexLock lock(mutex_);
    if (refusal_.has_value()) return closed_error(*refusal_);
    if (queue_.empty()) {
      loop().post([this, self = shared_from_this()] {
        // A close() says what becomes of the queue.
        if (!close_called()) deliver_queued_in_loop();
      });
    }
    queue_.push_back(std::move(message));
    return ++last_ticket_;
  }

  void capture(uint64_t) override {}

  // Opens both ends, if somebody listens at the address.
  void connect_in_loop(std::shared_ptr<ConnectionListener> listener) {
    listener_ = std::move(listener);
    if (!begin_in_loop()) return;
    Transport::AcceptHandler on_accept;
    {
      MutexLock lock(context_->mutex);
      if (context_->address == peer_address()) on_accept = context_->on_accept;
    }
    if (on_accept == nullptr) {
      finish_in_loop(
          refused_error(absl::StrCat("cannot connect to ", peer_address(), ": nobody listens there")));
      return;
    }
    peer_ = std::make_shared<LoopbackConnection>(context_, peer_address());
    const std::shared_ptr<LoopbackConnection> accepted = peer_;
    accepted->peer_ = keep(this);
    accepted->begin_in_loop();
    accepted->listener_ = on_accept(accepted);
    accepted->await_introduction_in_loop();
    if (accepted->listener_ == nullptr) accepted->finish_in_loop(absl::PermissionDeniedError("refused"));
  }

 private:
  void refuse_sends(const absl::Status& reason) override {
    MutexLock lock(mutex_);
    if (!refusal_.has_value()) refusal_ = reason;
  }

  void flush_in_loop() override {
    deliver_queued_in_loop();
    drained_in_loop();
  }

  void release_in_loop(const absl::Status& reason) override {
    refuse_sends(reason);
    std::deque<Message> unsent;
    {
      MutexLock lock(mutex_);
      unsent.swap(queue_);
    }
    if (peer_ == nullptr) return;
    loop().post([peer = std::exchange(peer_, nullptr)] {
      peer->fail_in_loop(absl::UnavailableError("the other end closed it"));
    });
  }

  void deliver_queued_in_loop() {
    // The listener may close this end: then the rest waits for flush_in_loop().
    while (!close_called() || Clock::system().now() < flush_until_in_loop()) {
      Message message;
      {
        MutexLock lock(mutex_);
        if (queue_.empty()) return;
        message = std::move(queue_.front());
        queue_.pop_front();
      }
      // What is called may close either end, and so let go of it.
      const std::shared_ptr<LoopbackConnection> peer = peer_;
      if (peer == nullptr || peer->listener_ == nullptr || peer->close_called()) return;
      peer->listener_->on_message(*peer, std::move(message));
    }
  }

  const std::shared_ptr<LoopbackContext> context_;
  // Belongs to the loop's driver.
  std::shared_ptr<LoopbackConnection> peer_;

  Mutex mutex_;
  // Why nothing more is taken.
  std::optional<absl::Status> refusal_ ABSL_GUARDED_BY(mutex_);
  std::deque<Message> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
};

class LoopbackTransport : public LoopTransport<LoopbackContext> {
 public:
  LoopbackTransport(BufferPoolOptions pool, std::shared_ptr<EventLoop> loop)
      : LoopTransport("loopback", std::make_shared<LoopbackContext>(pool, std::move(loop))) {}

  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    GRADWIRE_RETURN_IF_ERROR(start());
    MutexLock lock(context_->mutex);
    if (context_->on_accept != nullptr)
      return absl::FailedPreconditionError("the loopback transport listens already");
    context_->on_accept = std::move(on_accept);
    context_->address = absl::StrCat(kPrefix, absl::Hex(random_id()));
    return context_->address;
  }

  absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                      std::shared_ptr<ConnectionListener> listener,
                                                      absl::Duration) override {
    if (!absl::StartsWith(address, kPrefix) || address == kPrefix) {
      return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is no loopback address"));
    }
    auto connection = std::make_shared<LoopbackConnection>(context_, address);
    return begin(connection, [connection, listener = std::move(listener)]() mutable {
      connection->connect_in_loop(std::move(listener));
    });
  }
};

}  // namespace

std::unique_ptr<Transport> make_loopback_transport(BufferPoolOptions pool, std::shared_ptr<EventLoop> loop) {
  return std::make_unique<LoopbackTransport>(pool, std::move(loop));
}

}  // namespace gradwire::transport
