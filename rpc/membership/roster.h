#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

// One line of a group's log (proto/membership.proto).
struct RosterEntry {
  enum class Kind : uint8_t { kJoin, kLeave, kDeath };
  Kind kind = Kind::kJoin;
  // The worker that it is about; for kLeave and kDeath only the incarnation counts. Id -1 of one that joins:
  // to be assigned.
  Worker worker;
  // kJoin: how many the group has; 0: an open one.
  int32_t world_size = 0;
  // kDeath: who says so (an incarnation), and why.
  uint64_t by = 0;
  std::string reason;
};

// The members of a group, by its log: a pure state machine that every worker, and every one that wants to
// join, feeds with the same entries in the same order, so that all agree on what each entry means.
//
// An incarnation: unknown -> member -> left or dead, for good. A name and an id belong to one member at a
// time; those of one that is gone may be taken by a new incarnation. A worker that is dead can declare nobody
// dead any more, so of two that accuse each other one stays.
//
// Not thread-safe.
class Roster {
 public:
  enum class Status : uint8_t { kUnknown, kMember, kLeft, kDead };

  struct Change {
    enum class What : uint8_t {
      // The entry had been made before, or its writer had no right to it.
      kNothing,
      kJoined,
      // kJoin: another member has the name, or the id, or the group was started with another world size.
      kNameTaken,
      kIdTaken,
      kOtherWorldSize,
      kLeft,
      kDied,
    };
    What what = What::kNothing;
    // The one who joined (its id assigned), left or died; of a refusal the member in the way.
    Worker worker;
    // kOtherWorldSize: the group's.
    int32_t world_size = 0;
  };

  Change apply(const RosterEntry& entry);
  // The result that apply() would have.
  Change check(const RosterEntry& entry) const;

  Status status(uint64_t incarnation) const;
  // By id.
  const std::map<int32_t, Worker>& members() const { return members_; }
  // nullptr when no member has the name.
  const Worker* find(const std::string& name) const;
  // Entries applied so far: the position of the next.
  uint64_t position() const { return position_; }
  int32_t world_size() const { return world_size_; }

 private:
  void remove(uint64_t incarnation, Status as);

  uint64_t position_ = 0;
  int32_t world_size_ = 0;
  int32_t next_id_ = 0;
  std::map<int32_t, Worker> members_;
  struct Known {
    int32_t id = -1;
    Status status = Status::kUnknown;
  };
  absl::flat_hash_map<uint64_t, Known> known_;
};

}  // namespace gradwire::rpc
