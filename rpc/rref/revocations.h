#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/codec/id.h"

namespace gradwire::rpc {

// Which references in messages can be revoked, and which have been (ReferenceMessage::Kind::kRevoke). The
// sharer revokes none whose message has not left yet. The receiver refuses one that was revoked before it
// came; of each sharer it remembers the newest kMax. A pure state machine. Not thread-safe.
class Revocations {
 public:
  static constexpr std::size_t kMax = 65536;

  // ---- The sharer's side.

  // The message with the reference `child` is being made; it has left, or never will.
  void begin(const Id& child) { unsent_.insert(child); }
  void end(const Id& child) { unsent_.erase(child); }
  bool is_unsent(const Id& child) const { return unsent_.contains(child); }
  std::size_t unsent() const { return unsent_.size(); }

  // ---- The receiver's side.

  void revoke(uint64_t sharer, const Id& child) {
    std::set<Id>& revoked = revoked_[sharer];
    revoked.insert(child);
    if (revoked.size() > kMax) revoked.erase(revoked.begin());
  }
  // Nothing that the sharer sent before can come any more.
  void forget(uint64_t sharer) { revoked_.erase(sharer); }
  bool is_revoked(uint64_t sharer, const Id& child) const {
    auto found = revoked_.find(sharer);
    return found != revoked_.end() && found->second.contains(child);
  }
  bool remembers(uint64_t sharer) const { return revoked_.contains(sharer); }
  std::size_t revoked() const {
    std::size_t total = 0;
    for (const auto& [sharer, children] : revoked_) total += children.size();
    return total;
  }

  // Tables in the same state have the same hash: for those who explore states.
  template <class H>
  friend H AbslHashValue(H hash, const Revocations& revocations) {
    return H::combine(std::move(hash), revocations.unsent_, revocations.revoked_);
  }

 private:
  absl::flat_hash_set<Id> unsent_;
  // Sharer -> its children, by age: the counters of the ids ascend.
  absl::flat_hash_map<uint64_t, std::set<Id>> revoked_;
};

}  // namespace gradwire::rpc
