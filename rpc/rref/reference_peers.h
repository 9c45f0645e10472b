#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/membership/gone_workers.h"
#include "gradwire/rpc/rref/holder_table.h"
#include "gradwire/rpc/rref/reference_actions.h"
#include "gradwire/rpc/rref/reference_message.h"

namespace gradwire::rpc {

// The other workers as the reference protocol of one worker sees them: who is a member, who is lost, and the
// messages to them that wait for an answer. A pure state machine. Not thread-safe.
class ReferencePeers {
 public:
  explicit ReferencePeers(uint64_t self) : self_(self) {}

  uint64_t self() const { return self_; }
  // Whoever is a member, and then lost, never becomes one again.
  void join(uint64_t member);
  // Drops what waits for an answer of `member`. False when it was lost before, or is this worker.
  bool lose(uint64_t member);
  const absl::flat_hash_set<uint64_t>& members() const { return members_; }
  const GoneWorkers& lost() const { return lost_; }
  bool is_lost(uint64_t worker) const { return lost_.contains(worker); }

  // Sends a message until it is answered. Nothing is sent to the lost.
  void post(ReferenceMessage message, ReferenceActions& actions);
  void post_confirm(uint64_t sharer, const Id& rref, const Id& fork, ReferenceActions& actions);
  void post_deletes(const HolderTable::Deletes& deletes, ReferenceActions& actions);
  // False when it was answered before, or a later round took its place.
  bool take_answered(const ReferenceMessage& message);
  // What waits for an answer of `to`: to be sent again.
  std::vector<ReferenceMessage> unacknowledged(uint64_t to) const;
  std::size_t unacknowledged() const { return outbox_.size(); }

  // Peers in the same state have the same hash: for those who explore states.
  template <class H>
  friend H AbslHashValue(H hash, const ReferencePeers& peers) {
    return H::combine(std::move(hash), peers.members_, peers.lost_, peers.outbox_);
  }

 private:
  using Key = std::tuple<ReferenceMessage::Kind, uint64_t, Id>;
  static Key key_of(const ReferenceMessage& message) { return {message.kind, message.to, message.fork}; }

  uint64_t self_;
  // Without this worker.
  absl::flat_hash_set<uint64_t> members_;
  GoneWorkers lost_;
  absl::flat_hash_map<Key, ReferenceMessage> outbox_;
};

}  // namespace gradwire::rpc
