#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/membership/gone_workers.h"
#include "gradwire/rpc/rref/holder_table.h"
#include "gradwire/rpc/rref/reference_actions.h"
#include "gradwire/rpc/rref/reference_message.h"

namespace gradwire::rpc {

// The other workers in the reference protocol of one worker: the members, the lost workers, and the messages
// to them that wait for an answer. A pure state machine. Not thread-safe.
class ReferencePeers {
 public:
  // answers() uses `max_unacknowledged`.
  ReferencePeers(uint64_t self, std::size_t max_unacknowledged)
      : self_(self), max_unacknowledged_(max_unacknowledged) {}

  uint64_t self() const { return self_; }
  // A member that was lost never becomes a member again.
  void join(uint64_t member);
  // Drops the messages to `member`. Returns false when it was lost before, or is this worker.
  bool lose(uint64_t member);
  const HashSet<uint64_t>& members() const { return members_; }
  const GoneWorkers& lost() const { return lost_; }
  bool is_lost(uint64_t worker) const { return lost_.contains(worker); }

  // Sends a message until it is answered. Does nothing for a lost receiver.
  void post(ReferenceMessage message, ReferenceActions& actions);
  void post_confirm(uint64_t sharer, const Id& rref, const Id& fork, ReferenceActions& actions);
  void post_deletes(const HolderTable::Deletes& deletes, ReferenceActions& actions);
  // Returns false when the message was answered before, or a later round replaced it.
  bool take_answered(const ReferenceMessage& message);
  // The messages to `to` without an answer, to be sent again.
  std::vector<ReferenceMessage> unacknowledged(uint64_t to) const;
  std::size_t unacknowledged() const { return total_unacknowledged_; }
  // Number of messages to `to` without an answer, in constant time.
  std::size_t count_unacknowledged(uint64_t to) const {
    auto messages = outbox_.find(to);
    return messages == outbox_.end() ? 0 : messages->second.size();
  }
  // Whether the numbers agree with the messages: always. It examines all of them.
  bool consistent() const;
  // Whether this number is below the maximum.
  bool answers(uint64_t to) const { return count_unacknowledged(to) < max_unacknowledged_; }

  // Peers in the same state have the same hash. Used to explore states in tests.
  template <class H>
  friend H AbslHashValue(H hash, const ReferencePeers& peers) {
    return H::combine(std::move(hash), peers.members_, peers.lost_, peers.outbox_);
  }

 private:
  using Key = std::pair<ReferenceMessage::Kind, Id>;
  static Key key_of(const ReferenceMessage& message) { return {message.kind, message.fork}; }

  uint64_t self_;
  std::size_t max_unacknowledged_;
  // All members but this worker.
  HashSet<uint64_t> members_;
  GoneWorkers lost_;
  // The messages to each receiver. An entry is never empty.
  HashMap<uint64_t, HashMap<Key, ReferenceMessage>> outbox_;
  // Number of messages in outbox_.
  std::size_t total_unacknowledged_ = 0;
};

}  // namespace gradwire::rpc
