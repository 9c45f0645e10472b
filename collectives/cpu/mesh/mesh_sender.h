#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/cpu/p2p/endpoint.h"
#include "gradwire/collectives/cpu/span.h"
#include "gradwire/transport/connection.h"

namespace gradwire::collectives::cpu {

// The state machine of a Mesh, with the lock that guards it.
struct MeshEndpoint {
  explicit MeshEndpoint(const Endpoint::Options& options) : state(options) {}

  Mutex mutex;
  Endpoint state ABSL_GUARDED_BY(mutex);
};

// The outgoing half of a Mesh: sends the entries of the endpoint's outboxes over a connection to each rank.
//
// One thread at a time empties the outbox of a rank; another thread that adds an entry meanwhile leaves it to
// that thread. A short message is copied into the transport. The transport reads a longer one from the
// caller's memory, and the message has been sent when the transport releases that memory.
//
// Thread-safe. The lock of the endpoint is not held while something is sent, or while the owner is called.
class MeshSender {
 public:
  using ConnectionPtr = std::shared_ptr<transport::Connection>;

  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void perform(Effects effects) = 0;
    // Makes a connection to the rank, and calls set_connection() when it is open.
    virtual void connect(int rank) = 0;
    // Keeps the sender alive while the transport reads the memory of a message.
    virtual std::weak_ptr<MeshSender> sender() = 0;
  };

  // `owner` and `endpoint` must outlive the sender.
  MeshSender(Owner& owner, MeshEndpoint& endpoint, int rank, int size)
      : owner_(owner), endpoint_(endpoint), rank_(rank), peers_(static_cast<std::size_t>(size)) {}

  void set_connection(int rank, const ConnectionPtr& connection);
  // Sends a short message at once if no other message waits for the rank, and returns the result. Returns
  // nullopt if the message must be queued, or if the endpoint may refuse it.
  std::optional<absl::Status> send_at_once(int dst, uint64_t channel, int64_t tag, Span data);
  // Sends the entries of the outbox to a connected rank. If there is no connection, asks the owner to make
  // one.
  void empty_outbox(int dst);
  // Makes the transport release the memory of the message, if it uses it.
  void retract(const SendPtr& send, Effects& effects);

 private:
  // Calls on_released() when the transport releases the data of a message.
  class Release;

  struct Peer {
    ConnectionPtr connection;
    bool sending = false;  // A thread is emptying the outbox.
  };
  // A message whose data the transport reads.
  struct Reading {
    ConnectionPtr connection;
    std::optional<uint64_t> ticket;  // Set when the transport has accepted the message.
    bool released = false;           // The transport released the data before `ticket` was set.
  };

  Peer& peer(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(endpoint_.mutex) {
    return peers_[static_cast<std::size_t>(rank)];
  }
  // Send one entry of the outbox, and report the result to the endpoint.
  void transmit(const ConnectionPtr& out, const SendTable::Outgoing& next);
  void transmit_data(const ConnectionPtr& out, const SendTable::Outgoing& next);
  // Sends data that the caller may reuse afterwards: the transport copies the part that it has not sent yet.
  absl::Status send_captured(transport::Connection& out, int dst, const Frame& frame, Span data);
  absl::Status context(const absl::Status& status, uint64_t channel, int dst);
  void on_released(uint64_t id);

  Owner& owner_;
  MeshEndpoint& endpoint_;
  const int rank_;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(endpoint_.mutex);
  absl::flat_hash_map<uint64_t, Reading> reading_ ABSL_GUARDED_BY(endpoint_.mutex);
};

}  // namespace gradwire::collectives::cpu
