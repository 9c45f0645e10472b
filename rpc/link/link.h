#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/link/arrivals.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/link/flow_window.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/transport/connection.h"

namespace gradwire::rpc {

// What both sides of a connection must speak (proto/rpc.proto, Hello).
inline constexpr uint32_t kProtocolVersion = 1;

class Peers;
class Link;

// What Peers knows of one worker. Guarded by Peers::mutex_ but for the first three.
struct Peer {
  Worker worker;
  proto::WorkerRecord record;
  // Held by the one who makes a connection to it, so that there is one and nothing overtakes its Hello.
  Mutex connecting;
  // The link that new requests use.
  std::shared_ptr<Link> link;
  // Open links on which it has introduced itself.
  int links = 0;
  // What this side has sent to it: the connections that this side has numbered, and the last of these numbers. `untold`:
  // one has ended since the last heartbeat.
  std::vector<std::shared_ptr<Link>> numbered;
  uint64_t last_number = 0;
  bool untold = false;
  // What has been read of the messages that it sent. Written under Peers::mutex_: not everything that is remembered has
  // settled, so whoever reads a message asks again.
  Arrivals arrivals;
  std::atomic<bool> unsettled{false};
  // Such a link has ended since the last one came.
  bool broke = false;
  bool suspect = false;
  bool lost = false;
  bool left = false;
  absl::Status lost_reason;
  // Another incarnation has taken its name or id.
  bool superseded = false;
  // Transports by which it was reached, and those that failed and are not tried again, with the reason.
  std::set<std::string> worked;
  std::map<std::string, absl::Status> given_up;
  // Those of them that the log does not have yet.
  std::vector<std::string> unreported;
  // Of the calls that go to it. Synchronised by itself.
  FlowWindow flow;
};

// Whether what a message carries may change unless its ticket is captured.
inline bool any_borrowed(const std::vector<transport::Buffer>& buffers) {
  return std::any_of(buffers.begin(), buffers.end(), [](const transport::Buffer& buffer) {
    return buffer.sharing() == transport::Buffer::Sharing::kBorrowed;
  });
}

// A message that waits for the directory. What follows a Hello that waits is not parsed before that is admitted: a few
// bytes of a header may become many in memory.
struct HeldMessage {
  EnvelopePtr envelope;  // nullptr: `unread` is to be parsed.
  std::string unread;
  std::vector<transport::Buffer> buffers;
  uint64_t bytes = 0;  // Of memory, as it was counted.
};

// One connection and who is at its other end. Thread-safe: each member says what guards it.
class Link : public transport::ConnectionListener, public std::enable_shared_from_this<Link> {
 public:
  // How long a connection that came in may stay silent.
  static constexpr absl::Duration kHelloTimeout = absl::Seconds(10);
  // How long a message waits for the log to tell of a worker that it names.
  static constexpr absl::Duration kStrangerTimeout = absl::Seconds(5);
  // Messages that are held on one link; Limits bounds their bytes.
  static constexpr std::size_t kMaxHeld = 4096;
  // The first message of the other side: a Hello, or a Goodbye instead of one.
  static constexpr uint64_t kMaxHelloBytes = 16 << 10;
  static constexpr absl::Duration kLate = absl::Milliseconds(10);

  // `peer`: whom a connection is made to; nullptr for one that came in.
  Link(Peers& peers, uint64_t number, std::shared_ptr<Peer> peer, std::string transport)
      : peers_(peers),
        number_(number),
        transport_(std::move(transport)),
        made_here_(peer != nullptr),
        peer_(std::move(peer)) {}

  void on_message(transport::Connection& connection, transport::Message message) override;
  uint64_t max_message_bytes() const override { return max_message_bytes_.load(std::memory_order_relaxed); }
  void on_closed(transport::Connection& connection, absl::Status reason) override;

  uint64_t number() const { return number_; }
  // Whether what was sent on it, even successfully, may be lost.
  bool closed() const { return closed_; }

  // Sends an envelope; returns the transport's ticket. Errors as Connection::send.
  absl::StatusOr<uint64_t> send(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers);
  // The same for what nobody waits for: it goes with the next message, or kLate later, so that it wakes nobody at the
  // other end in vain. It may be lost with the link.
  void send_late(const proto::Envelope& envelope);
  // Connection::capture and Connection::allocate.
  void capture(uint64_t ticket);
  absl::StatusOr<transport::Buffer> allocate(std::size_t size);

 private:
  friend class Peers;

  // Counts the message and hands it to the connection.
  absl::StatusOr<uint64_t> depart(transport::Message message);
  absl::StatusOr<uint64_t> send_now(std::string header, std::vector<transport::Buffer> buffers);
  void send_late_ones();

  // Returns when the one who makes this connection knows it, and has sent Hello.
  void wait_until_opened() {
    if (opened_.load(std::memory_order_acquire)) return;
    opening_.lock();
    opening_.unlock();
  }

  Peers& peers_;
  const uint64_t number_;
  const std::string transport_;
  const bool made_here_;
  // Held while the connection is being made: what arrives on it, and its end, come after that. Nothing that
  // the maker does meanwhile waits for the transport's thread.
  Mutex opening_;
  std::atomic<bool> opened_{false};
  // Set once, before opened_.
  std::shared_ptr<transport::Connection> connection_;
  // The other end, once it has introduced itself and nothing is held: what arrives then needs no lock. Written under
  // Peers::mutex_; read by the transport's thread, which alone ends the link.
  std::atomic<Peer*> active_{nullptr};
  // Since the last heartbeat was due.
  std::atomic<bool> heard_{false};
  std::atomic<bool> sent_{false};
  // Messages that were sent here (Departures), and that were read here and handled (Arrivals).
  std::atomic<uint64_t> departed_{0};
  const std::shared_ptr<Arrivals::Counter> read_ = std::make_shared<Arrivals::Counter>(0);
  // Its end has been noticed.
  std::atomic<bool> closed_{false};
  // What may come next: little before the Hello, what may be held before that is admitted, then what the transport takes.
  // Written under Peers::mutex_.
  std::atomic<uint64_t> max_message_bytes_{kMaxHelloBytes};
  // Bytes that had arrived at the last heartbeat: progress of a large message is a sign of life.
  uint64_t arrived_ = 0;  // Guarded by Peers::mutex_.

  Mutex late_mutex_;
  std::vector<std::string> late_ ABSL_GUARDED_BY(late_mutex_);
  bool late_timer_ ABSL_GUARDED_BY(late_mutex_) = false;
  std::atomic<bool> has_late_{false};

  // Held while what was held on this link is handed over, which the link's end waits for.
  Mutex releasing_;

  // Guarded by Peers::mutex_.
  std::shared_ptr<Peer> peer_;  // Whom it was made for, or who introduced itself.
  uint64_t hello_timer_ = 0;
  bool introduced_ = false;  // The other side's Hello was accepted.
  bool greeted_ = false;     // This side's has been sent: only then may anything else be.
  uint64_t departs_as_ = 0;  // The number in this side's Hello; 0 before.
  uint64_t arrives_as_ = 0;  // The number in the other side's; 0 before.
  // Messages that wait for the directory, in order; while holds_ is set later ones queue behind them.
  bool holds_ = false;
  std::deque<HeldMessage> held_;
  uint64_t held_bytes_ = 0;
  // kStrangerTimeout is over.
  bool impatient_ = false;
  bool limited_ = false;  // A timer runs for that.
};

}  // namespace gradwire::rpc
