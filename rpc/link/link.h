#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/rpc/core/observers.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/link/handshake.h"
#include "gradwire/rpc/link/held_messages.h"
#include "gradwire/rpc/link/parts/arrived_parts.h"
#include "gradwire/rpc/link/parts/parts_in_flight.h"
#include "gradwire/rpc/link/peer.h"
#include "gradwire/rpc/metrics/peer_calls.h"
#include "gradwire/rpc/transfers/transfer_watch.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

class Link;
class PeerTable;

// Receives everything that Peers finds out, on threads of the transports and of the timers. Implementations
// must not block.
class PeerSink {
 public:
  virtual ~PeerSink() = default;
  // A request has arrived. The answer must be sent on `link`.
  virtual void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                          std::vector<transport::Buffer> buffers) = 0;
  virtual void on_response(const Worker& from, EnvelopePtr envelope,
                           std::vector<transport::Buffer> buffers) = 0;
  // Returns the callee of a call to the peer that is not answered, for the log; "" if it is not known.
  virtual std::string callee_of(const Worker& /*peer*/, uint64_t /*call_id*/) { return ""; }
  virtual void on_cancel(const Worker& from, uint64_t link, uint64_t call_id) = 0;
  // The link has ended. Messages in transit on it are lost.
  virtual void on_link_closed(const Worker& peer, const Link& link, const absl::Status& reason) = 0;
  // A connection is open again after one had broken.
  virtual void on_link_restored(const Worker& peer) = 0;
  // Every message of this peer that ArrivalOrder::require() named has been handled. Call settled() again,
  // which may be false by then.
  virtual void on_settled(const Worker& peer) = 0;
  // The state has changed to kAlive or kSuspect.
  virtual void on_worker_state(const Worker& peer, WorkerState state) = 0;
  // The peer has been silent for longer than HeartbeatOptions::dead_after. Called repeatedly while that
  // lasts.
  virtual void on_unresponsive(const Worker& peer, const absl::Status& reason) = 0;
  // The worker is lost: `state` is kDead or kLeft. Called once for each worker.
  virtual void on_worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason) = 0;
};

// Whether a buffer of the message is borrowed: its bytes may change after the send unless the message's
// ticket is captured.
inline bool any_borrowed(const std::vector<transport::Buffer>& buffers) {
  return std::any_of(buffers.begin(), buffers.end(), [](const transport::Buffer& buffer) {
    return buffer.sharing() == transport::Buffer::Sharing::kBorrowed;
  });
}

// Copies the bytes of borrowed buffers, for a message that is sent after its sender has gone on.
void own_bytes(std::vector<transport::Buffer>& buffers);

// The sending half of a link: it counts the messages that it sends, and collects messages that need not be
// sent at once. Thread-safe.
class LinkSender : public std::enable_shared_from_this<LinkSender> {
 public:
  static constexpr absl::Duration kDeferral = absl::Milliseconds(10);

  uint64_t number() const { return number_; }
  // Whether the connection has ended. A message that was sent on it, even successfully, may then be lost.
  bool closed() const { return closed_; }
  // Number of bytes that wait in the connection for the peer to read them; 0 if fewer than kUnreadGrain wait.
  uint64_t unread_bytes();
  static constexpr uint64_t kUnreadGrain = uint64_t{1} << 20;
  // Number of messages that were sent on this link (Departures).
  uint64_t departed() const { return departed_.load(); }
  // Bytes of these messages, and of those that have arrived; and Connection::no_room().
  struct Traffic {
    uint64_t sent = 0;
    uint64_t received = 0;
    transport::Connection::NoRoom no_room;
  };
  Traffic traffic() const {
    return {
        link_bytes_.load(std::memory_order_relaxed), bytes_read_.load(std::memory_order_relaxed),
        opened_.load(std::memory_order_acquire) ? connection_->no_room() : transport::Connection::NoRoom()};
  }
  // Bytes that the transport has not sent yet.
  std::size_t queued_bytes() const {
    return opened_.load(std::memory_order_acquire) ? connection_->queued_bytes() : 0;
  }

  // Sends an envelope; returns the transport's ticket. `answered`: the request that a Response answers, for
  // the log; nullptr if it is not known. Errors: as Connection::send(). After an exception nothing was sent.
  absl::StatusOr<uint64_t> send(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers,
                                const proto::Request* answered = nullptr);
  // As above, with encoded tensors whose bytes are complete. Tensors that were handed over are kept until the
  // receiver has taken them, or the connection has ended. Refers to buffers that were sent ahead.
  absl::StatusOr<uint64_t> send_encoded(proto::Envelope& envelope, EncodedTensors&& tensors,
                                        const proto::Request* answered = nullptr);
  // Sends an envelope for which no thread waits. It is sent behind the next message, or kDeferral later, so
  // that the peer is not woken only for it. It may be lost with the link.
  void send_deferred(const proto::Envelope& envelope);
  // For parts of messages (PartsAhead). count_part() must be called before a part is sent, and returns false
  // over a limit; forget_parts() after the message that they belong to, or its end, was sent.
  uint64_t next_parted_message() { return next_parted_message_.fetch_add(1); }
  bool count_part(const PartsInFlight::Size& part, bool begins);
  void forget_parts(const PartsInFlight::Size& message);
  // Connection::capture, Connection::borrows and Connection::allocate.
  void capture(uint64_t ticket) { connection_->capture(ticket); }
  bool borrows(uint64_t ticket) const { return connection_->borrows(ticket); }
  absl::StatusOr<transport::Buffer> allocate(std::size_t size);

  // Sends a serialised heartbeat if `forced`, or if nothing else was sent since the last call.
  void beat(const std::string& heartbeat, bool forced);
  // Closes the connection at once, because a message for which the peer waits cannot be sent.
  void cut(const absl::Status& reason) noexcept;
  // Sends a serialised Goodbye and closes the connection for `reason`.
  void part(std::string goodbye, const absl::Status& reason, absl::Duration flush);

  // The metrics of the calls whose answers are sent on this link. Synchronised by itself.
  PeerCallsHandle served_metrics;

 protected:
  // The first two must outlive it. `transfers` must not be nullptr.
  LinkSender(TimerQueue& timers, std::atomic<uint64_t>& bytes_sent, uint64_t number,
             std::shared_ptr<TransferWatch> transfers, std::string peer_name)
      : timers_(timers),
        transfers_(std::move(transfers)),
        peer_name_(std::move(peer_name)),
        bytes_sent_(bytes_sent),
        number_(number) {}
  ~LinkSender() = default;

  // Counts a message that has arrived, here and in `all`. Only for the transport's thread.
  void count_read(std::size_t size, std::atomic<uint64_t>& all) {
    if (transfers_->watches(size)) transfers_->received(number_);
    all.fetch_add(size, std::memory_order_relaxed);
    bytes_read_.store(bytes_read_.load(std::memory_order_relaxed) + size, std::memory_order_relaxed);
  }
  // Call when the connection has ended: its messages do not arrive any more. Returns the tensors to destroy.
  std::vector<std::shared_ptr<HandedOver>> drop_handed_over();

  // Returns when connect() has stored the connection and sent the Hello.
  void wait_until_opened() {
    if (opened_.load(std::memory_order_acquire)) return;
    opening_.lock();
    opening_.unlock();
  }

  TimerQueue& timers_;
  // Large messages on their way.
  const std::shared_ptr<TransferWatch> transfers_;
  // The worker at the other end, for the log. On an incoming connection it is set before a request or an
  // answer is sent.
  std::string peer_name_;
  // Locked while the connection is being made, which never blocks: Transport::connect() returns before the
  // connection is established. Arriving messages and the end of the connection are handled after that. The
  // thread that makes the connection must not wait for the transport's thread while it holds this lock.
  Mutex opening_;
  std::atomic<bool> opened_{false};
  // Set once, before opened_.
  std::shared_ptr<transport::Connection> connection_;
  // Whether the end of the connection has been noticed.
  std::atomic<bool> closed_{false};

 private:
  // Counts the message and hands it to the connection.
  absl::StatusOr<uint64_t> depart(transport::Message&& message);
  // A message, as the log describes it. A deferred message has no envelope any more.
  struct About {
    const proto::Envelope* envelope = nullptr;
    const proto::Request* answered = nullptr;
  };
  absl::StatusOr<uint64_t> send_now(std::string&& header, std::vector<transport::Buffer>&& buffers,
                                    const About& about);
  void flush_deferred() noexcept;
  void keep(std::shared_ptr<HandedOver> handed_over);

  std::atomic<uint64_t>& bytes_sent_;
  const uint64_t number_;
  // Whether a message has been sent since the last call of beat().
  std::atomic<bool> sent_{false};
  std::atomic<uint64_t> departed_{0};
  // An upper bound of the unread bytes: those at the last question to the connection, and all sent since.
  std::atomic<uint64_t> unread_bound_{0};
  std::atomic<uint64_t> link_bytes_{0};
  std::atomic<uint64_t> bytes_read_{0};

  Mutex deferred_mutex_;
  std::vector<std::string> deferred_ ABSL_GUARDED_BY(deferred_mutex_);
  bool timer_scheduled_ ABSL_GUARDED_BY(deferred_mutex_) = false;
  std::atomic<bool> has_deferred_{false};

  std::atomic<uint64_t> next_parted_message_{1};
  Mutex parts_mutex_;
  PartsInFlight parts_in_flight_ ABSL_GUARDED_BY(parts_mutex_);

  Mutex handed_over_mutex_;
  std::vector<std::shared_ptr<HandedOver>> handed_over_ ABSL_GUARDED_BY(handed_over_mutex_);
  // Number of entries at which those that were taken are removed.
  std::size_t sweep_at_ ABSL_GUARDED_BY(handed_over_mutex_) = 8;
};

// One connection and the worker at its other end. It opens the connection (Handshake decides), passes what
// arrives to the PeerSink, and holds messages that must wait.
//
// Thread-safe. Owned jointly by its connection, its peer, and the threads that send on it.
class Link : public LinkSender, public transport::ConnectionListener {
 public:
  // Maximum time that a message is held for the group's log to name a worker.
  static constexpr absl::Duration kStrangerTimeout = absl::Seconds(5);
  // Maximum size of the first message of the other side, which is a Hello, or a Goodbye instead of one.
  static constexpr uint64_t kMaxHelloBytes = 16 << 10;

  // The owner of the links, which keeps a table of them.
  class Host {
   public:
    virtual ~Host() = default;
    // The connection is made, and nothing has been sent on it. An error ends the connection.
    virtual absl::Status on_made(const std::shared_ptr<Link>& link) = 0;
    // Must call release() after the next change of the group. Called with the link's lock held.
    virtual void wait_for_group(const std::shared_ptr<Link>& link) = 0;
    // Both sides have introduced themselves. `restored`: the last connection with the peer had broken before.
    virtual void on_open(const Link& link, const std::shared_ptr<Peer>& peer, bool restored) = 0;
    // The peer has sent a Goodbye that ends its membership.
    virtual void lose(const std::shared_ptr<Peer>& peer, WorkerState state, absl::Status reason) = 0;
    // The connection has ended. `peer` is nullptr for an incoming connection on which no Hello was admitted.
    virtual void on_closed(const std::shared_ptr<Link>& link, const std::shared_ptr<Peer>& peer,
                           const absl::Status& reason) = 0;
  };
  // The state that all links of a worker share. It must outlive them.
  struct Context {
    const Worker& self;
    const PeerTable& group;
    PeerSink& sink;
    Host& host;
    TimerQueue& timers;
    const Limits limits;
    const std::shared_ptr<Observers> observers;
    const std::shared_ptr<TransferWatch> transfers;
    // Runs what a thread of the transports must not run: what may wait, and code of the program. nullptr:
    // observers are not answered.
    const std::shared_ptr<Executor> executor = nullptr;
    std::atomic<bool> stopping{false};
    std::atomic<uint64_t> bytes_sent{0};
    std::atomic<uint64_t> bytes_received{0};
    std::atomic<uint64_t> held_bytes{0};
  };

  // `peer`: the worker to connect to; nullptr for an incoming connection.
  Link(Context& context, uint64_t number, std::shared_ptr<Peer> peer, std::string transport);

  // Call exactly one of these before anything else. connect() also sends the Hello. Errors: those of the
  // transport and of the host, or the reason why the peer is lost.
  absl::Status connect(transport::Transport& transport, const std::string& address, absl::Duration timeout);
  void accept(const std::shared_ptr<transport::Connection>& connection);

  void on_message(transport::Connection& connection, transport::Message message) override;
  void on_lost(transport::Connection& connection, std::string header, absl::Status reason) override;
  void on_arriving(transport::Connection& connection, const std::string& header, uint64_t bytes,
                   uint64_t arrived) override;
  uint64_t max_message_bytes() const override { return max_message_bytes_.load(std::memory_order_relaxed); }
  bool introduced() const override;
  void on_closed(transport::Connection& connection, absl::Status reason) override;

  // Handles the held messages, as far as the present view of the group allows.
  void release();
  // Returns the incarnation of the peer if something has arrived from it since the last call, else 0.
  uint64_t take_recent_sender();

  const std::string& transport() const { return transport_; }
  // Number of messages of which only parts have arrived.
  std::size_t parted_messages() const { return parts_.size(); }
  bool made_here() const { return made_here_; }

 private:
  std::shared_ptr<Link> shared() { return std::static_pointer_cast<Link>(shared_from_this()); }

  void introduce(Peer& peer);
  // Decides on a message that has no held message before it. After kHold the host will call release().
  Handshake::Step decide_locked(const proto::Envelope& envelope) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `lost`: not OK if the buffers of the message were dropped.
  void receive(transport::Connection& connection, transport::Message&& message, const absl::Status& lost);
  // Holds the message if it follows a held Hello; otherwise returns false, and leaves it unchanged.
  bool hold_unparsed(transport::Message& message);
  void handle(EnvelopePtr envelope, std::vector<transport::Buffer> buffers);
  // Handles a message of an observer. An error ends the connection.
  absl::Status observe(EnvelopePtr message);
  // Sends the reason to the other side, and ends the connection.
  void refuse(const absl::Status& reason);
  void perform(const Handshake::Step& step, Peer* from, EnvelopePtr envelope,
               std::vector<transport::Buffer> buffers);
  // Stores the buffers of a Part, or adds those that came before a message. Returns false if it has ended the
  // connection, because the peer has violated the protocol.
  bool take_parts(EnvelopeBox& box, std::vector<transport::Buffer>& buffers);
  // Passes a message that follows the Hello to the sink. Returns false for an unknown kind of message, which
  // is then unchanged.
  bool deliver(Peer& from, EnvelopePtr& envelope, std::vector<transport::Buffer>& buffers);
  absl::Status admit(const proto::Hello& hello);
  void leave(const proto::Goodbye& goodbye);
  // Schedules release() for the time when the timeout of the held messages is over.
  void limit_wait_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Context& context_;
  const std::string transport_;
  const bool made_here_;
  // The peer, while it has introduced itself and no message is held; else nullptr. While it is set, arriving
  // messages are handled without taking mutex_. Written with the lock held; read by the transport's thread.
  // Only that thread ends the link, so the peer is valid while a message is handled.
  std::atomic<Peer*> active_{nullptr};
  // Whether a message has arrived since the last call of take_recent_sender().
  std::atomic<bool> received_{false};
  // Number of messages that were read on this link and handled (Arrivals).
  const std::shared_ptr<Arrivals::Counter> read_ = std::make_shared<Arrivals::Counter>(0);
  ArrivedParts parts_;
  // Size limit of the next message: kMaxHelloBytes before the Hello, then the limit on held bytes until the
  // Hello is admitted, then none but the transport's. Written with the lock held.
  std::atomic<uint64_t> max_message_bytes_{kMaxHelloBytes};

  // Locked while held messages of this link are being handled; the end of the link waits for that. Lock
  // order: before mutex_.
  Mutex releasing_;

  // Lock order: before the locks of the host, of the group and of a Peer.
  mutable Mutex mutex_;
  Handshake handshake_ ABSL_GUARDED_BY(mutex_);
  // The peer that the connection was made to, or that has introduced itself on it.
  std::shared_ptr<Peer> peer_ ABSL_GUARDED_BY(mutex_);
  HeldMessages held_ ABSL_GUARDED_BY(mutex_);
  // Bytes that had arrived at the last heartbeat. Progress within a large message counts as a sign of life.
  uint64_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::rpc
