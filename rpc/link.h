#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "proto/membership.pb.h"
#include "rpc/envelope.h"
#include "rpc/worker.h"
#include "transport/connection.h"

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
  // Attempts to reach it again since its connection broke; 0: alive.
  int probes = 0;
  bool lost = false;
  absl::Status lost_reason;
  // Transports that failed between this worker and that one, and are not tried again.
  std::set<std::string> given_up;
};

// Whether what a message carries may change unless its ticket is captured.
inline bool any_borrowed(const std::vector<transport::Buffer>& buffers) {
  return std::any_of(buffers.begin(), buffers.end(), [](const transport::Buffer& buffer) {
    return buffer.sharing() == transport::Buffer::Sharing::kBorrowed;
  });
}

// One connection and who is at its other end. Thread-safe: each member says what guards it.
class Link : public transport::ConnectionListener, public std::enable_shared_from_this<Link> {
 public:
  // How long a connection that came in may stay silent.
  static constexpr absl::Duration kHelloTimeout = absl::Seconds(10);

  // `transport`: of a connection made here; empty for one that came in.
  Link(Peers& peers, uint64_t number, std::shared_ptr<Peer> peer, std::string transport)
      : peers_(peers), number_(number), transport_(std::move(transport)), peer_(std::move(peer)) {}

  void on_message(transport::Connection& connection, transport::Message message) override;
  void on_closed(transport::Connection& connection, absl::Status reason) override;

  uint64_t number() const { return number_; }

  // Sends an envelope; returns the transport's ticket. Errors as Connection::send.
  absl::StatusOr<uint64_t> send(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers);
  // Connection::capture and Connection::allocate.
  void capture(uint64_t ticket);
  absl::StatusOr<transport::Buffer> allocate(std::size_t size);

 private:
  friend class Peers;

  // Returns when the one who makes this connection knows it, and has sent Hello.
  void wait_until_opened() {
    if (opened_.load(std::memory_order_acquire)) return;
    opening_.lock();
    opening_.unlock();
  }

  Peers& peers_;
  const uint64_t number_;
  const std::string transport_;
  // Held while the connection is being made: what arrives on it, and its end, come after that. Nothing that
  // the maker does meanwhile waits for the transport's thread.
  Mutex opening_;
  std::atomic<bool> opened_{false};
  // Set once, before opened_.
  std::shared_ptr<transport::Connection> connection_;
  // The other end, once it has introduced itself and nothing is held: what arrives then needs no lock. Written under
  // Peers::mutex_; read by the transport's thread, which alone ends the link.
  std::atomic<Peer*> active_{nullptr};

  // Guarded by Peers::mutex_.
  std::shared_ptr<Peer> peer_;  // Whom it was made for, or who introduced itself.
  uint64_t hello_timer_ = 0;
  bool introduced_ = false;  // The other side's Hello was accepted.
  // Messages that wait for the directory, in order; while holds_ is set later ones queue behind them.
  using Held = std::pair<EnvelopePtr, std::vector<transport::Buffer>>;
  bool holds_ = false;
  std::vector<Held> held_;
};

}  // namespace gradwire::rpc
