#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gradwire::simulation {

// Which event met which state of the machines.
class Coverage {
 public:
  enum class Machine : uint8_t { kHeldFork, kOwnedFork, kFence, kMember, kWatched, kCount };

  // kHeldFork: a fork at its holder (rpc::HolderTable::Stage), and
  enum HeldEvent : uint8_t {
    kReleased,
    kShared,
    kUnshared,
    kAdded,
    kAddRefused,
    kCreated,
    kCreationFailed,
    kChildConfirmed,
    kChildNever,
    kRevokeAsked,
    kOwnerLost,
    kHeldEvents
  };
  // kOwnedFork: a fork at its owner.
  enum OwnedState : uint8_t {
    kRRefUnknown,  // nobody refers to the RRef
    kForkUnknown,  // somebody else does
    kKnown,        // the fork is in the table
    kDeleted,      // its delete is remembered
    kHolderLost,   // lost, and nothing of it is here
    kKeptForLost,  // lost, and the fork waits for the fence
    kOwnedStates
  };
  enum OwnedEvent : uint8_t {
    kCreate,
    kAdd,
    kDelete,
    kDeleteSettled,
    kRegister,    // by sharing
    kUnregister,  // it never left, or never got there
    kOwnedEvents
  };
  // kFence: this worker's own fence.
  enum FenceState : uint8_t { kNoFence, kFenceDue, kFenceRunning, kFenceStates };
  enum FenceEvent : uint8_t {
    kLose,
    kFenced,       // the group agrees
    kAsked,        // another's fence, answered at once
    kAskedToWait,  // answered when something has been registered, or somebody lost
    kAskedByDead,
    kAnswered,
    kAnsweredRefused,
    kAnsweredLate,  // of an earlier round
    kJoin,
    kFenceEvents
  };
  // kMember: what a roster knows of the one that an entry is about (rpc::Roster::Status), and
  enum MemberEvent : uint8_t { kJoins, kJoinRefused, kLeaves, kDies, kAccusedByGone, kMemberEvents };
  // kWatched: rpc::FailureDetector::State, and
  enum WatchedEvent : uint8_t {
    kConnected,
    kHeard,
    kDisconnected,
    kRefused,
    kUnreachable,
    kTicked,
    kAccused,
    kRemoved,
    kWatchedEvents
  };

  void hit(Machine machine, int state, int event) { ++counts_[static_cast<int>(machine)][state][event]; }
  void add(const Coverage& other);
  // A table for each machine.
  std::string print() const;
  // Pairs that never met, and are not on the list of those that cannot.
  std::vector<std::string> unreached() const;

 private:
  static constexpr int kMost = 12;
  std::array<std::array<std::array<uint64_t, kMost>, kMost>, static_cast<int>(Machine::kCount)> counts_{};
};

}  // namespace gradwire::simulation
