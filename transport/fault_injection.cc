#include "gradwire/transport/fault_injection.h"

#include <atomic>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/transport/delay_line.h"

namespace gradwire::transport {
namespace {

// The state that the wrapper shares with its connections.
struct FaultContext {
  FaultContext(FaultPolicy given, Clock& clock) : policy(std::move(given)), timers(clock) {}

  const FaultPolicy policy;
  TimerQueue timers;

  Mutex mutex;
  CondVar changed;
  // Number of connections whose listener has not received on_closed().
  int open_connections ABSL_GUARDED_BY(mutex) = 0;
};

// Returns the message with copies of its borrowed buffers, for a message that is sent after send() has
// returned.
Message owned_copy(const Message& message) {
  Message copy;
  copy.header = message.header;
  for (const Buffer& buffer : message.buffers) {
    if (buffer.sharing() == Buffer::Sharing::kOwned || buffer.size() == 0) {
      copy.buffers.push_back(buffer);
      continue;
    }
    auto bytes = std::make_shared<std::string>(static_cast<const char*>(buffer.data()), buffer.size());
    copy.buffers.emplace_back(bytes->data(), bytes->size(), bytes);
  }
  return copy;
}

// Returns a second message for the receiver. Its buffers are aligned and owned only by it.
Message received_copy(const Message& message) {
  struct alignas(64) Line {
    char bytes[64];
  };
  Message copy;
  copy.header = message.header;
  for (const Buffer& buffer : message.buffers) {
    auto lines = std::make_shared<std::vector<Line>>((buffer.size() + 63) / 64);
    if (buffer.size() > 0) std::memcpy(lines->data(), buffer.data(), buffer.size());
    copy.buffers.emplace_back(lines->data(), buffer.size(), lines);
  }
  return copy;
}

class FaultConnection : public Connection, public std::enable_shared_from_this<FaultConnection> {
 public:
  explicit FaultConnection(std::shared_ptr<FaultContext> context)
      : context_(std::move(context)),
        outgoing_(std::make_shared<DelayLine>(context_->timers)),
        incoming_(std::make_shared<DelayLine>(context_->timers)) {}

  // Sets the wrapped connection. It may become known only after the first call of its listener.
  void set_inner(std::shared_ptr<Connection> inner) {
    MutexLock lock(mutex_);
    inner_ = std::move(inner);
    changed_.notify_all();
  }

  absl::StatusOr<uint64_t> send(Message message) override {
    absl::Status closed = closed_status();
    if (!closed.ok()) return closed;
    Fault fault = context_->policy(Direction::kOutgoing, message);
    switch (fault.kind) {
      case Fault::Kind::kDrop:
        return kNothingToCapture;
      case Fault::Kind::kCut:
        inner()->close(cut_status());
        return kNothingToCapture;
      case Fault::Kind::kDuplicate:
        send_later(owned_copy(message), absl::ZeroDuration());
        break;
      case Fault::Kind::kDelay:
        send_later(owned_copy(message), fault.delay);
        return kNothingToCapture;
      case Fault::Kind::kDeliver:
        break;
    }
    // Send directly only if no delayed message is queued: otherwise this one would overtake it.
    if (outgoing_->idle()) return inner()->send(std::move(message));
    send_later(owned_copy(message), absl::ZeroDuration());
    return kNothingToCapture;
  }

  void capture(uint64_t ticket) override { inner()->capture(ticket); }
  bool borrows(uint64_t ticket) override { return inner()->borrows(ticket); }

  void close(absl::Status reason, absl::Duration flush) override {
    std::shared_ptr<Connection> inner = this->inner();
    std::string peer = inner->peer_address();
    {
      MutexLock lock(mutex_);
      if (!close_status_.ok()) return;
      close_status_ =
          absl::UnavailableError(absl::StrCat("connection with ", peer, " is closed: ", reason.message()));
    }
    close_called_.store(true);
    if (flush <= absl::ZeroDuration()) {
      outgoing_->discard();
      inner->close(std::move(reason), flush);
    } else {
      outgoing_->add(absl::ZeroDuration(), [inner, reason, flush] { inner->close(reason, flush); });
    }
  }

  absl::StatusOr<Buffer> allocate(std::size_t size) override { return inner()->allocate(size); }
  std::size_t queued_bytes() override { return inner()->queued_bytes(); }
  NoRoom no_room() const override { return inner()->no_room(); }
  uint64_t bytes_arrived() const override { return inner()->bytes_arrived(); }
  bool counts_whole_buffers() const override { return inner()->counts_whole_buffers(); }

  security::PeerIdentity peer() const override { return inner()->peer(); }
  std::string peer_address() const override { return inner()->peer_address(); }

  // Whether the listener has handled all messages that have arrived.
  bool has_delivered_all() const { return incoming_->idle(); }

  void receive(const std::shared_ptr<ConnectionListener>& listener, Message message) {
    Fault fault = context_->policy(Direction::kIncoming, message);
    absl::Duration delay = fault.kind == Fault::Kind::kDelay ? fault.delay : absl::ZeroDuration();
    if (fault.kind == Fault::Kind::kDrop) return;
    if (fault.kind == Fault::Kind::kCut) {
      inner()->close(cut_status());
      return;
    }
    if (fault.kind == Fault::Kind::kDuplicate) deliver(listener, received_copy(message), delay);
    deliver(listener, std::move(message), delay);
  }

  // Behind the delayed messages, as a message would be.
  void lost(const std::shared_ptr<ConnectionListener>& listener, std::string header, absl::Status reason) {
    incoming_->add(absl::ZeroDuration(), [self = shared_from_this(), listener, header = std::move(header),
                                          reason = std::move(reason)] {
      if (!self->close_called_.load()) listener->on_lost(*self, header, reason);
    });
  }

  void arriving(ConnectionListener& listener, const std::string& header, uint64_t bytes, uint64_t arrived) {
    if (!close_called_.load()) listener.on_arriving(*this, header, bytes, arrived);
  }

  void closed(const std::shared_ptr<ConnectionListener>& listener, absl::Status reason) {
    {
      MutexLock lock(mutex_);
      if (close_status_.ok()) {
        close_status_ = absl::UnavailableError(absl::StrCat("the connection is closed: ", reason.message()));
      }
    }
    // Deliver the delayed incoming messages now, and on_closed() after them.
    outgoing_->discard();
    incoming_->make_all_due();
    incoming_->add(absl::InfiniteDuration() * -1, [self = shared_from_this(), listener, reason] {
      listener->on_closed(*self, reason);
      MutexLock lock(self->context_->mutex);
      --self->context_->open_connections;
      self->context_->changed.notify_all();
    });
  }

 private:
  static constexpr uint64_t kNothingToCapture = 0;

  static absl::Status cut_status() {
    return absl::UnavailableError("the connection was cut by fault injection");
  }

  std::shared_ptr<Connection> inner() const {
    MutexLock lock(mutex_);
    while (inner_ == nullptr) changed_.wait(mutex_);
    return inner_;
  }

  absl::Status closed_status() const {
    MutexLock lock(mutex_);
    return close_status_;
  }

  void send_later(Message message, absl::Duration delay) {
    auto shared = std::make_shared<Message>(std::move(message));
    // The connection may have been closed meanwhile: then the message is lost.
    outgoing_->add(delay, [inner = inner(), shared] { (void)inner->send(std::move(*shared)); });
  }

  void deliver(const std::shared_ptr<ConnectionListener>& listener, Message message, absl::Duration delay) {
    auto shared = std::make_shared<Message>(std::move(message));
    incoming_->add(delay, [self = shared_from_this(), listener, shared] {
      if (!self->close_called_.load()) listener->on_message(*self, std::move(*shared));
    });
  }

  const std::shared_ptr<FaultContext> context_;
  const std::shared_ptr<DelayLine> outgoing_;
  const std::shared_ptr<DelayLine> incoming_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::shared_ptr<Connection> inner_ ABSL_GUARDED_BY(mutex_);
  absl::Status close_status_ ABSL_GUARDED_BY(mutex_);

  std::atomic<bool> close_called_{false};
};

class FaultListener : public ConnectionListener {
 public:
  FaultListener(std::shared_ptr<FaultConnection> connection, std::shared_ptr<ConnectionListener> listener)
      : connection_(std::move(connection)), listener_(std::move(listener)) {}

  void on_message(Connection&, Message message) override {
    connection_->receive(listener_, std::move(message));
  }
  void on_arriving(Connection&, const std::string& header, uint64_t bytes, uint64_t arrived) override {
    connection_->arriving(*listener_, header, bytes, arrived);
  }
  void on_lost(Connection&, std::string header, absl::Status reason) override {
    connection_->lost(listener_, std::move(header), std::move(reason));
  }
  // While a message is delayed, the limit of the listener is that of the delayed message, which may raise it.
  uint64_t max_message_bytes() const override {
    return connection_->has_delivered_all() ? listener_->max_message_bytes()
                                            : ConnectionListener::max_message_bytes();
  }
  bool introduced() const override { return listener_->introduced(); }

  void on_closed(Connection&, absl::Status reason) override {
    connection_->closed(listener_, std::move(reason));
  }

 private:
  const std::shared_ptr<FaultConnection> connection_;
  const std::shared_ptr<ConnectionListener> listener_;
};

class FaultTransport : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> inner, FaultPolicy policy, Clock& clock)
      : inner_(std::move(inner)), context_(std::make_shared<FaultContext>(std::move(policy), clock)) {}
  ~FaultTransport() override { shutdown(); }

  std::string name() const override { return inner_->name(); }

  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    return inner_->listen(
        [context = context_,
         on_accept](const std::shared_ptr<Connection>& inner) -> std::shared_ptr<ConnectionListener> {
          auto connection = std::make_shared<FaultConnection>(context);
          connection->set_inner(inner);
          std::shared_ptr<ConnectionListener> listener = on_accept(connection);
          if (listener == nullptr) return nullptr;
          count_open(*context, +1);
          return std::make_shared<FaultListener>(connection, std::move(listener));
        });
  }

  absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string& address,
                                                      std::shared_ptr<ConnectionListener> listener,
                                                      absl::Duration timeout) override {
    auto connection = std::make_shared<FaultConnection>(context_);
    count_open(*context_, +1);
    auto inner =
        inner_->connect(address, std::make_shared<FaultListener>(connection, std::move(listener)), timeout);
    if (!inner.ok()) {
      count_open(*context_, -1);
      return inner.status();
    }
    connection->set_inner(*std::move(inner));
    return std::shared_ptr<Connection>(std::move(connection));
  }

  bool may_reach(const std::string& address) const override { return inner_->may_reach(address); }

  void shutdown() override {
    inner_->shutdown();
    {
      // Wait until the timers' thread has delivered the delayed messages and on_closed().
      MutexLock lock(context_->mutex);
      while (context_->open_connections > 0) context_->changed.wait(context_->mutex);
    }
    context_->timers.shutdown();
  }

 private:
  static void count_open(FaultContext& context, int by) {
    MutexLock lock(context.mutex);
    context.open_connections += by;
    context.changed.notify_all();
  }

  const std::unique_ptr<Transport> inner_;
  const std::shared_ptr<FaultContext> context_;
};

}  // namespace

FaultPolicy seeded_fault_policy(uint64_t seed, FaultRates rates) {
  struct State {
    Mutex mutex;
    std::mt19937_64 random ABSL_GUARDED_BY(mutex);
  };
  auto state = std::make_shared<State>();
  {
    MutexLock lock(state->mutex);
    state->random.seed(seed);
  }
  return [state, rates](Direction direction, const Message& message) -> Fault {
    if (rates.applies_to != nullptr && !rates.applies_to(direction, message)) return {};
    double draw, share;
    {
      MutexLock lock(state->mutex);
      std::uniform_real_distribution<double> uniform(0, 1);
      draw = uniform(state->random);
      share = uniform(state->random);
    }
    for (auto [rate, kind] :
         {std::pair(rates.drop, Fault::Kind::kDrop), std::pair(rates.delay, Fault::Kind::kDelay),
          std::pair(rates.duplicate, Fault::Kind::kDuplicate), std::pair(rates.cut, Fault::Kind::kCut)}) {
      if (draw < rate)
        return {kind, kind == Fault::Kind::kDelay ? rates.max_delay * share : absl::ZeroDuration()};
      draw -= rate;
    }
    return {};
  };
}

std::unique_ptr<Transport> make_fault_injecting_transport(std::unique_ptr<Transport> inner,
                                                          FaultPolicy policy, Clock& clock) {
  return std::make_unique<FaultTransport>(std::move(inner), std::move(policy), clock);
}

}  // namespace gradwire::transport
