#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/coverage_table.h"

namespace gradwire::references_simulation {

// The machines of the simulation, and the states and events whose meetings are counted.
struct Coverage {
  enum Machine : uint8_t { kHeldFork, kOwnedFork, kFence, kMember, kWatched };

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
  };
  // kOwnedFork: a fork at its owner.
  enum OwnedState : uint8_t {
    kRRefUnknown,  // nobody refers to the RRef
    kForkUnknown,  // somebody else does
    kKnown,        // the fork is in the table
    kDeleted,      // its delete is remembered
    kHolderLost,   // lost, and nothing of it is here
    kKeptForLost,  // lost, and the fork waits for the fence
  };
  enum OwnedEvent : uint8_t {
    kCreate,
    kAdd,
    kDelete,
    kDeleteSettled,
    kRegister,    // by sharing
    kUnregister,  // it never left, or never got there
  };
  // kFence: this worker's own fence.
  enum FenceState : uint8_t { kNoFence, kFenceDue, kFenceRunning };
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
  };
  // kMember: what a roster knows of the one that an entry is about (rpc::Roster::Status), and
  enum MemberEvent : uint8_t { kJoins, kJoinRefused, kLeaves, kDies, kAccusedByGone };
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
  };

  static simulation::CoverageTable table();
};

}  // namespace gradwire::references_simulation
