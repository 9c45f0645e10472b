#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/inspect/observers.h"
#include "gradwire/rpc/link/handshake.h"
#include "gradwire/rpc/link/held_messages.h"
#include "gradwire/rpc/link/link_sender.h"
#include "gradwire/rpc/link/parts/arrived_parts.h"
#include "gradwire/rpc/link/peer.h"
#include "gradwire/rpc/link/peer_sink.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

class PeerTable;

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
  // Holds the message if it follows a held Hello; otherwise returns false, and leaves it unchanged.
  bool hold_unparsed(transport::Message& message);
  void handle(EnvelopePtr envelope, std::vector<transport::Buffer> buffers);
  // Sends the reason to the other side, and ends the connection.
  void refuse(const absl::Status& reason);
  void perform(const Handshake::Step& step, Peer* from, EnvelopePtr envelope,
               std::vector<transport::Buffer> buffers);
  // Stores the buffers of a Part, or adds those that came before a message. Returns false if it has ended the
  // connection, because the peer has violated the protocol.
  bool take_parts(const proto::Envelope& envelope, std::vector<transport::Buffer>& buffers);
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
