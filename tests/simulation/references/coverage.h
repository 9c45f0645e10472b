#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/coverage_table.h"

namespace gradwire::references_simulation {

// Names the state machines of the simulation, and their states and events. The simulation counts each pair of
// a state and an event.
struct Coverage {
  enum Machine : uint8_t { kHeldFork, kOwnedFork, kFence, kMember, kWatched };

  // kHeldFork is a fork at its holder. Its states are those of rpc::HolderTable::Stage.
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
  // kOwnedFork is a fork at its owner.
  enum OwnedState : uint8_t {
    kRRefUnknown,  // The owner's table does not contain the RRef.
    kForkUnknown,  // The table contains the RRef, but not this fork.
    kKnown,        // The table contains the fork.
    kDeleted,      // The table remembers the delete of the fork.
    kHolderLost,   // The holder is lost, and the table does not contain the fork.
    kKeptForLost,  // The holder is lost, and the table keeps the fork until the fence ends.
  };
  enum OwnedEvent : uint8_t {
    kCreate,
    kAdd,
    kDelete,
    kDeleteSettled,
    kRegister,    // The owner shares the RRef.
    kUnregister,  // The shared reference was not sent, or did not arrive.
  };
  // kFence is this worker's own fence.
  enum FenceState : uint8_t { kNoFence, kFenceDue, kFenceRunning };
  enum FenceEvent : uint8_t {
    kLose,
    kFenced,       // The group agrees on a death.
    kAsked,        // A request of another worker's fence is answered at once.
    kAskedToWait,  // Such a request is answered later: when a reference is registered or a worker is lost.
    kAskedByDead,
    kAnswered,
    kAnsweredRefused,
    kAnsweredLate,  // An answer to an earlier round arrives.
    kJoin,
  };
  // kMember is the worker that a log entry is about. Its states are those of rpc::Roster::Status.
  enum MemberEvent : uint8_t { kJoins, kJoinRefused, kLeaves, kDies, kAccusedByGone };
  // kWatched is a worker that a failure detector watches. Its states are those of
  // rpc::FailureDetector::State.
  enum WatchedEvent : uint8_t {
    kConnected,
    kReceived,
    kDisconnected,
    kRefused,
    kUnreachable,
    kTicked,
    kAccused,
    kRemoved,
  };

  // Returns an empty table for these machines.
  static simulation::CoverageTable table();
};

}  // namespace gradwire::references_simulation
