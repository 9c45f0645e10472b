#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/coverage_table.h"

namespace gradwire::pass_simulation {

// Names the state machines of the simulation, and their states and events. The simulation counts each pair of
// a state and an event.
struct Coverage {
  enum Machine : uint8_t { kParticipant, kRoot, kContext };

  // States of a worker's part in a pass.
  enum PartState : uint8_t {
    kNew,    // No message was received.
    kWave,   // The part waits for answers of the marking wave.
    kWork,   // The part waits for nodes to run or for gradients.
    kIdle,   // The part waits for neither, but has not ended.
    kEnded,  // The part has succeeded.
    kFailed,
  };
  enum PartEvent : uint8_t {
    kMark,
    kMarkRepeated,
    kNeeded,
    kNeededRepeated,
    kMarkAnswered,
    kRun,
    kRunRepeated,
    kRunAnswered,
    kFinish,
    kFinishRepeated,
    kFinishAnswered,
    kAbort,
    kCallFailed,
    kNodeRan,
    kNodeFailed,
    kWorkerLost,
    kReleased,
    kCancelled,
  };
  // States of a context at a worker.
  enum ContextState : uint8_t { kUnknown, kLive, kGone };
  enum ContextEvent : uint8_t {
    kOpened,
    kForward,
    kSends,
    kInputs,
    kPassMessage,
    kUserRelease,
    kCleanup,
    kOverdue,
    kOriginLost,
    kPeerLost,
  };

  // Returns an empty table for these machines.
  static simulation::CoverageTable table();
};

}  // namespace gradwire::pass_simulation
