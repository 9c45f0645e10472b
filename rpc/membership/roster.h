#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::rpc {

// One line of a group's log (proto/membership.proto).
struct RosterEntry {
  enum class Kind : uint8_t { kJoin, kLeave, kDeath };
  Kind kind = Kind::kJoin;
  // The worker that the line is about. For kLeave and kDeath only its incarnation counts. An id of -1 in a
  // join means that the log assigns one.
  Worker worker;
  // For kJoin: the size of the group; 0 for an open group.
  int32_t world_size = 0;
  // For kDeath: the incarnation of the worker that declares the death, and the reason.
  uint64_t by = 0;
  std::string reason;
};

// The members of a group according to its log: a pure state machine. Every worker, including one that wants
// to join, feeds it with the same entries in the same order, so that all agree on the effect of each entry.
//
// States of an incarnation: unknown -> member -> left or dead; the last two are final. A name and an id
// belong to one member at a time. Once that member has left or is dead, a new incarnation may take them. A
// dead worker cannot declare other workers dead, so of two workers that accuse each other one stays a member.
//
// Not thread-safe.
class Roster {
 public:
  enum class Status : uint8_t { kUnknown, kMember, kLeft, kDead };

  struct Change {
    enum class What : uint8_t {
      // The entry has no effect: it repeats an earlier one, or its writer had no right to it.
      kNothing,
      kJoined,
      // A join fails: another member has the name or the id, or the group was started with another world
      // size.
      kNameTaken,
      kIdTaken,
      kOtherWorldSize,
      kLeft,
      kDied,
    };
    What what = What::kNothing;
    // The worker that joined (with its assigned id), left or died; for a join that fails, the member that
    // conflicts.
    Worker worker;
    // For kOtherWorldSize: the size of the group.
    int32_t world_size = 0;
  };

  Change apply(const RosterEntry& entry);
  // Returns the result that apply() would have, and changes nothing.
  Change check(const RosterEntry& entry) const;

  Status status(uint64_t incarnation) const;
  // The members, by id.
  const std::map<int32_t, Worker>& members() const { return members_; }
  // Returns nullptr if no member has the name.
  const Worker* find(const std::string& name) const;
  // Number of entries applied so far, which is the position of the next one.
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
  HashMap<uint64_t, Known> known_;
};

}  // namespace gradwire::rpc
