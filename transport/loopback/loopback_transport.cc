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
    // Destroyed without the lock: it owns objects of users.
    Transport::AcceptHandler dropped;
    {
      MutexLock lock(mutex);
      dropped.swap(on_accept);
    }
    LoopContext::shut_down_in_loop();
  }

  // The wait policy of the transport's own thread.
  struct {
    WaitPolicy wait;
  } options;

  Mutex mutex;
  std::string address ABSL_GUARDED_BY(mutex);
  Transport::AcceptHandler on_accept ABSL_GUARDED_BY(mutex);
};

// One end of a connection. Both ends of a pair own each other until they are closed.
class LoopbackConnection : public LoopConnection {
 public:
  LoopbackConnection(std::shared_ptr<LoopbackContext> context, std::string peer_address)
      : LoopConnection(context, std::move(peer_address)), context_(std::move(context)) {}

  // Copies the buffers, as a transport between processes would: the receiver owns what it gets, and the
  // caller may change its tensors.
  absl::StatusOr<uint64_t> send(Message message) override {
    for (Buffer& buffer : message.buffers) {
      absl::StatusOr<Buffer> copy = context_->pool->allocate(buffer.size());
      if (!copy.ok()) return with_context(copy.status(), "cannot copy a message to the own process");
      if (buffer.size() > 0) std::memcpy(copy->data(), buffer.data(), buffer.size());
      buffer = *std::move(copy);
    }
    MutexLock lock(mutex_);
    if (refusal_.has_value()) return closed_error(*refusal_);
    if (queue_.empty()) {
      // If the queue was not empty, the task of an earlier message delivers this one too: it runs until it
      // finds the queue empty, under the same lock.
      post([this] {
        // After close() the flush handles the queue.
        if (!close_called()) deliver_queued_in_loop();
      });
    }
    queue_.push_back(std::move(message));
    return ++last_ticket_;
  }

  void capture(uint64_t) override {}
  bool borrows(uint64_t) override { return false; }
  security::PeerIdentity peer() const override { return {.proof = security::PeerIdentity::Proof::kProcess}; }

  // Opens both ends if the transport listens at the address.
  void connect_in_loop(std::shared_ptr<ConnectionListener> listener) {
    listener_ = std::move(listener);
    if (!begin_in_loop()) return;
    Transport::AcceptHandler on_accept;
    {
      MutexLock lock(context_->mutex);
      if (context_->address == peer_address()) on_accept = context_->on_accept;
    }
    if (on_accept == nullptr) {
      finish_in_loop(refused_error(absl::StrCat("cannot connect to ", peer_address(),
                                                ": no transport of this process listens there")));
      return;
    }
    peer_ = std::make_shared<LoopbackConnection>(context_, peer_address());
    const std::shared_ptr<LoopbackConnection> accepted = peer_;
    // Both ends own each other. release_in_loop() of either end breaks the cycle.
    accepted->peer_ = keep(this);
    accepted->begin_in_loop();
    accepted->listener_ = on_accept(accepted);
    accepted->await_introduction_in_loop();
    if (accepted->listener_ == nullptr)
      accepted->finish_in_loop(absl::PermissionDeniedError("the listening end refused the connection"));
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
    // Destroyed at the end of the function, without the lock.
    std::deque<Message> unsent;
    {
      MutexLock lock(mutex_);
      unsent.swap(queue_);
    }
    if (peer_ == nullptr) return;
    // In a task, because this may run inside a call of the peer's listener.
    const std::shared_ptr<LoopbackConnection> peer = std::exchange(peer_, nullptr);
    peer->post([peer = peer.get()] {
      peer->fail_in_loop(absl::UnavailableError("the peer closed the connection"));
    });
  }

  void deliver_queued_in_loop() {
    // The listener may close this end: then the rest of the queue waits for flush_in_loop().
    while (!close_called() || Clock::system().now() < flush_until_in_loop()) {
      Message message;
      {
        MutexLock lock(mutex_);
        if (queue_.empty()) return;
        message = std::move(queue_.front());
        queue_.pop_front();
      }
      // The listener may close either end and thereby drop peer_.
      const std::shared_ptr<LoopbackConnection> peer = peer_;
      if (peer == nullptr || peer->listener_ == nullptr || peer->close_called()) return;
      peer->run_in_loop([&] { peer->listener_->on_message(*peer, std::move(message)); });
    }
  }

  const std::shared_ptr<LoopbackContext> context_;
  // Used only by the loop's driver.
  std::shared_ptr<LoopbackConnection> peer_;

  Mutex mutex_;
  // The reason why send() fails, once the connection is closed.
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
      return absl::FailedPreconditionError("listen() was called twice on the loopback transport");
    context_->on_accept = std::move(on_accept);
    context_->address = absl::StrCat(kPrefix, absl::Hex(random_id()));
    return context_->address;
  }

  absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                      std::shared_ptr<ConnectionListener> listener,
                                                      absl::Duration) override {
    if (!absl::StartsWith(address, kPrefix) || address == kPrefix) {
      return absl::InvalidArgumentError(
          absl::StrCat("malformed loopback address: got \"", address, "\", expected loopback:<id>"));
    }
    auto connection = std::make_shared<LoopbackConnection>(context_, address);
    return begin(connection, [connection = connection.get(), listener = std::move(listener)]() mutable {
      connection->connect_in_loop(std::move(listener));
    });
  }
};

}  // namespace

std::unique_ptr<Transport> make_loopback_transport(BufferPoolOptions pool, std::shared_ptr<EventLoop> loop) {
  return std::make_unique<LoopbackTransport>(pool, std::move(loop));
}

}  // namespace gradwire::transport
