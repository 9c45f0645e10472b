#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/rpc/link/handshake.h"
#include "gradwire/rpc/link/held_messages.h"
#include "gradwire/rpc/link/link_sender.h"
#include "gradwire/rpc/link/peer.h"
#include "gradwire/rpc/link/peer_sink.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

class PeerTable;

// One connection and the worker at its other end: opens it (Handshake decides), hands what arrives to the
// PeerSink, and holds what has to wait.
//
// Thread-safe. Shared by its connection, its peer, and those who send on it.
class Link : public LinkSender, public transport::ConnectionListener {
 public:
  // How long a message waits for the log to tell of a worker that it names.
  static constexpr absl::Duration kStrangerTimeout = absl::Seconds(5);
  // The first message of the other side: a Hello, or a Goodbye instead of one.
  static constexpr uint64_t kMaxHelloBytes = 16 << 10;

  // The worker that the link belongs to, which keeps a table of its links.
  class Host {
   public:
    virtual ~Host() = default;
    // The connection is made, and nothing was sent on it. An error ends it.
    virtual absl::Status on_made(const std::shared_ptr<Link>& link) = 0;
    // release() is to be called after the next change of the group. With the link's lock held.
    virtual void wait_for_group(const std::shared_ptr<Link>& link) = 0;
    // Both sides have introduced themselves. `restored`: a connection with the peer had broken.
    virtual void on_open(const Link& link, const std::shared_ptr<Peer>& peer, bool restored) = 0;
    // The peer has said goodbye for good.
    virtual void lose(const std::shared_ptr<Peer>& peer, WorkerState state, absl::Status reason) = 0;
    // `peer`: nullptr for a connection that came in and on which nobody was admitted.
    virtual void on_closed(const std::shared_ptr<Link>& link, const std::shared_ptr<Peer>& peer,
                           const absl::Status& reason) = 0;
  };
  // The state that the links of a worker share. Outlives them.
  struct Context {
    const Worker& self;
    const PeerTable& group;
    PeerSink& sink;
    Host& host;
    TimerQueue& timers;
    const Limits limits;
    std::atomic<bool> stopping{false};
    std::atomic<uint64_t> bytes_sent{0};
    std::atomic<uint64_t> bytes_received{0};
    std::atomic<uint64_t> held_bytes{0};
  };

  // `peer`: whom a connection is made to; nullptr for one that came in.
  Link(Context& context, uint64_t number, std::shared_ptr<Peer> peer, std::string transport);

  // One of these comes first. connect() sends the Hello. Errors: the transport's, the host's, or why the peer
  // is lost.
  absl::Status connect(transport::Transport& transport, const std::string& address, absl::Duration timeout);
  void accept(const std::shared_ptr<transport::Connection>& connection);

  void on_message(transport::Connection& connection, transport::Message message) override;
  uint64_t max_message_bytes() const override { return max_message_bytes_.load(std::memory_order_relaxed); }
  bool introduced() const override;
  void on_closed(transport::Connection& connection, absl::Status reason) override;

  // Handles what was held, as far as the view of the group allows now.
  void release();
  // The incarnation of the peer if something has arrived from it since the last call; 0 else.
  uint64_t heard_from();

  const std::string& transport() const { return transport_; }
  bool made_here() const { return made_here_; }

 private:
  std::shared_ptr<Link> shared() { return std::static_pointer_cast<Link>(shared_from_this()); }

  void introduce(Peer& peer);
  // The step for a message that has no held message before it; kHold: release() will come.
  Handshake::Step decide_locked(const proto::Envelope& envelope) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Holds the message if it follows a Hello that waits. False for any other; then nothing was moved.
  bool hold_unread(transport::Message& message);
  void handle(EnvelopePtr envelope, std::vector<transport::Buffer> buffers);
  void perform(const Handshake::Step& step, Peer* from, EnvelopePtr envelope,
               std::vector<transport::Buffer> buffers);
  // Hands what follows a Hello to the sink. False for what does not; then nothing was moved.
  bool deliver(Peer& from, EnvelopePtr& envelope, std::vector<transport::Buffer>& buffers);
  absl::Status admit(const proto::Hello& hello);
  void leave(const proto::Goodbye& goodbye);
  // Whether a connection that came in shows that its kind leads to the other side's listener too.
  bool leads_back(const Peer& peer) const;
  // Has release() called when the timeout with what is held is over.
  void limit_wait_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Context& context_;
  const std::string transport_;
  const bool made_here_;
  // The other end, once it has introduced itself and no message is held: messages that arrive then need no
  // lock. Written under the lock; read by the transport's thread, which alone ends the link.
  std::atomic<Peer*> active_{nullptr};
  // Since the last heartbeat was due.
  std::atomic<bool> heard_{false};
  // Messages that were read here and handled (Arrivals).
  const std::shared_ptr<Arrivals::Counter> read_ = std::make_shared<Arrivals::Counter>(0);
  // The limit on the next message: small before the Hello, then the room for held messages until it is
  // admitted, then the transport's own. Written under the lock.
  std::atomic<uint64_t> max_message_bytes_{kMaxHelloBytes};

  // Held while what was held on this link is handed over, which the link's end waits for. Before mutex_.
  Mutex releasing_;

  // Before the locks of the host, of the group and of a Peer.
  mutable Mutex mutex_;
  Handshake handshake_ ABSL_GUARDED_BY(mutex_);
  // The peer that it was made for, or that introduced itself.
  std::shared_ptr<Peer> peer_ ABSL_GUARDED_BY(mutex_);
  HeldMessages held_ ABSL_GUARDED_BY(mutex_);
  // Bytes that had arrived at the last heartbeat: progress of a large message is a sign of life.
  uint64_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::rpc
