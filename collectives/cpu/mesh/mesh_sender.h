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

// The state machine of a Mesh, and the lock that guards it.
struct MeshEndpoint {
  explicit MeshEndpoint(const Endpoint::Options& options) : state(options) {}

  Mutex mutex;
  Endpoint state ABSL_GUARDED_BY(mutex);
};

// The outgoing half of a Mesh: sends what is in the outboxes of the endpoint over a connection to each rank.
//
// One thread at a time empties the outbox of a rank; a thread that adds to it meanwhile leaves its entry to
// that one. A short message is copied into the transport. The transport reads a longer one from the caller's
// memory, and the message has been sent when the transport releases that memory.
//
// Thread-safe. The lock of the endpoint is not held while something is sent, or while the owner is called.
class MeshSender {
 public:
  using ConnectionPtr = std::shared_ptr<transport::Connection>;

  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void perform(Effects effects) = 0;
    // Makes a connection to the rank, and calls set_connection() when it is there.
    virtual void connect(int rank) = 0;
    // Keeps the sender alive while the transport reads the memory of a message.
    virtual std::weak_ptr<MeshSender> sender() = 0;
  };

  // `owner` and `endpoint` outlive it.
  MeshSender(Owner& owner, MeshEndpoint& endpoint, int rank, int size)
      : owner_(owner), endpoint_(endpoint), rank_(rank), peers_(static_cast<std::size_t>(size)) {}

  void set_connection(int rank, const ConnectionPtr& connection);
  // Sends a short message at once, ahead of nothing, and returns how that went. Nothing when it has to be
  // queued, or the endpoint may refuse it.
  std::optional<absl::Status> send_at_once(int dst, uint64_t channel, int64_t tag, Span data);
  // Sends what is in the outbox of a connected rank; asks the owner for a connection otherwise.
  void empty_outbox(int dst);
  // Makes the transport release the memory of the message, if it has it.
  void retract(const SendPtr& send, Effects& effects);

 private:
  // Notices that the transport has released the data of a message.
  class Release;

  struct Peer {
    ConnectionPtr connection;
    bool sending = false;  // A thread empties the outbox.
  };
  // A message whose data the transport reads.
  struct Reading {
    ConnectionPtr connection;
    std::optional<uint64_t> ticket;  // Once the transport has taken it.
    bool released = false;           // The transport has released it before that.
  };

  Peer& peer(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(endpoint_.mutex) {
    return peers_[static_cast<std::size_t>(rank)];
  }
  // These send one entry of the outbox, and tell the endpoint what has become of it.
  void transmit(const ConnectionPtr& out, const SendTable::Outgoing& next);
  void transmit_data(const ConnectionPtr& out, const SendTable::Outgoing& next);
  // The transport copies the part that it has not sent yet: afterwards the data is the caller's again.
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
