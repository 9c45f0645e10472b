#include "gradwire/rpc/testing/network.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/transport/refused.h"

namespace gradwire::rpc::testing {

using transport::ConnectionListener;
using transport::Message;

// One end of a connection. The network's thread passes each message to the listener of the other end.
class Network::Connection : public transport::Connection,
                            public std::enable_shared_from_this<Network::Connection> {
 public:
  Connection(Network& network, std::string peer_address)
      : network_(network), peer_address_(std::move(peer_address)) {}

  void attach(const std::shared_ptr<Connection>& other, std::shared_ptr<ConnectionListener> listener) {
    MutexLock lock(mutex_);
    other_ = other;
    listener_ = std::move(listener);
  }

  absl::StatusOr<uint64_t> send(Message message) override {
    std::shared_ptr<Connection> other;
    {
      MutexLock lock(mutex_);
      if (closed_) return absl::UnavailableError("the connection is closed");
      other = other_.lock();
    }
    if (other == nullptr) return absl::UnavailableError("the connection is closed");
    auto moved = std::make_shared<Message>(std::move(message));
    network_.post([other, moved] { other->deliver(std::move(*moved)); });
    return 0;
  }
  void capture(uint64_t) override {}
  bool borrows(uint64_t) override { return false; }
  void close(absl::Status reason, absl::Duration) override {
    end(std::move(reason));
    std::shared_ptr<Connection> other;
    {
      MutexLock lock(mutex_);
      other = other_.lock();
    }
    if (other == nullptr) return;
    // The other end is closed after it has received all messages that were sent before.
    network_.post([other] { other->end(absl::UnavailableError("the peer closed the connection")); });
  }
  std::string peer_address() const override { return peer_address_; }

  void end_introduction() {
    std::shared_ptr<ConnectionListener> listener;
    {
      MutexLock lock(mutex_);
      listener = listener_;
    }
    if (listener != nullptr && !listener->introduced())
      close(absl::DeadlineExceededError("the peer did not complete the handshake"), absl::ZeroDuration());
  }

  void end(absl::Status reason) {
    {
      MutexLock lock(mutex_);
      if (std::exchange(closed_, true)) return;
    }
    network_.post([self = shared_from_this(), reason = std::move(reason)] {
      std::shared_ptr<ConnectionListener> listener;
      {
        MutexLock lock(self->mutex_);
        listener.swap(self->listener_);
      }
      if (listener != nullptr) listener->on_closed(*self, reason);
    });
  }

 private:
  void deliver(Message message) {
    std::shared_ptr<ConnectionListener> listener;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      listener = listener_;
    }
    if (listener != nullptr) listener->on_message(*this, std::move(message));
  }

  Network& network_;
  const std::string peer_address_;

  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::weak_ptr<Connection> other_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ConnectionListener> listener_ ABSL_GUARDED_BY(mutex_);
};

class Network::FakeTransport : public transport::Transport {
 public:
  explicit FakeTransport(Network& network) : network_(network) {}
  ~FakeTransport() override { shutdown(); }

  std::string name() const override { return "tcp"; }

  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    MutexLock lock(network_.mutex_);
    address_ = absl::StrCat("fake:", network_.next_address_++);
    network_.listening_[address_] =
        [this, on_accept = std::move(on_accept)](const std::shared_ptr<transport::Connection>& connection) {
          std::shared_ptr<ConnectionListener> listener = on_accept(connection);
          if (listener == nullptr) return listener;
          const auto accepted = std::static_pointer_cast<Connection>(connection);
          {
            MutexLock own(mutex_);
            connections_.push_back(accepted);
          }
          MutexLock all(network_.mutex_);
          network_.accepted_.push_back(accepted);
          return listener;
        };
    return address_;
  }

  absl::StatusOr<std::shared_ptr<transport::Connection>> connect(const std::string& address,
                                                                 std::shared_ptr<ConnectionListener> listener,
                                                                 absl::Duration) override {
    AcceptHandler accept;
    {
      MutexLock lock(network_.mutex_);
      auto found = network_.listening_.find(address);
      if (found != network_.listening_.end()) accept = found->second;
    }
    auto client = std::make_shared<Connection>(network_, address);
    auto server = std::make_shared<Connection>(network_, "fake:client");
    client->attach(server, std::move(listener));
    std::shared_ptr<ConnectionListener> accepted = accept ? accept(server) : nullptr;
    {
      MutexLock lock(mutex_);
      connections_.push_back(client);
    }
    if (accepted == nullptr) {
      client->end(transport::refused_error(absl::StrCat("no worker listens at ", address)));
    } else {
      server->attach(client, std::move(accepted));
    }
    return client;
  }

  void shutdown() override {
    std::vector<std::shared_ptr<Connection>> connections;
    {
      MutexLock lock(network_.mutex_);
      network_.listening_.erase(address_);
    }
    {
      MutexLock lock(mutex_);
      connections.swap(connections_);
    }
    for (const auto& connection : connections) {
      connection->close(absl::CancelledError("the transport has been shut down"), absl::ZeroDuration());
    }
    // Wait until the network's thread has run everything that was posted before. Then every listener has
    // received on_closed().
    Mutex mutex;
    CondVar changed;
    bool done = false;
    network_.post([&] {
      MutexLock lock(mutex);
      done = true;
      changed.notify_all();
    });
    MutexLock lock(mutex);
    while (!done) changed.wait(mutex);
  }

 private:
  Network& network_;
  std::string address_;  // Guarded by the network's mutex.
  Mutex mutex_;
  std::vector<std::shared_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
};

Network::Network() : thread_([this] { run(); }) {}

Network::~Network() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::unique_ptr<transport::Transport> Network::transport() { return std::make_unique<FakeTransport>(*this); }

std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)>
Network::wrapper() {
  return [this](const std::unique_ptr<transport::Transport>&) { return transport(); };
}

void Network::end_introductions() {
  std::vector<std::weak_ptr<Connection>> accepted;
  {
    MutexLock lock(mutex_);
    accepted.swap(accepted_);
  }
  for (const auto& each : accepted) {
    post([each] {
      if (const std::shared_ptr<Connection> connection = each.lock()) connection->end_introduction();
    });
  }
}

void Network::post(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void Network::run() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) changed_.wait(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace gradwire::rpc::testing
