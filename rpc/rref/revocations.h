#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/codec/id.h"

namespace gradwire::rpc {

// The revocation of references in messages (ReferenceMessage::Kind::kRevoke). The sharer does not revoke a
// reference whose message has not been sent yet. The receiver refuses a reference that was revoked before it
// arrived; it remembers the newest kMax revocations of each sharer. A pure state machine. Not thread-safe.
class Revocations {
 public:
  static constexpr std::size_t kMax = 65536;

  // ---- The sharer's side.

  // begin(): the message with the reference `child` is being made. end(): it was sent, or never will be.
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
  // No message that the sharer sent before can arrive any more.
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

  // Tables in the same state have the same hash. Used to explore states in tests.
  template <class H>
  friend H AbslHashValue(H hash, const Revocations& revocations) {
    return H::combine(std::move(hash), revocations.unsent_, revocations.revoked_);
  }

 private:
  absl::flat_hash_set<Id> unsent_;
  // Sharer -> its revoked children. Ordered by age, since the counters of ids ascend.
  absl::flat_hash_map<uint64_t, std::set<Id>> revoked_;
};

}  // namespace gradwire::rpc
