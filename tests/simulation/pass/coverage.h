#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/coverage_table.h"

namespace gradwire::pass_simulation {

// The machines of the simulation, and the states and events whose meetings are counted.
struct Coverage {
  enum Machine : uint8_t { kParticipant, kRoot, kContext };

  // Of a part in a pass.
  enum PartState : uint8_t {
    kNew,    // nothing was heard
    kWave,   // the wave is under way through it
    kWork,   // nodes or gradients are awaited
    kIdle,   // nothing is, but it has not ended
    kEnded,  // well
    kFailed,
  };
  enum PartEvent : uint8_t {
    kMark,
    kMarkAgain,
    kNeeded,
    kNeededAgain,
    kMarkAnswered,
    kRun,
    kRunAgain,
    kRunAnswered,
    kFinish,
    kFinishAgain,
    kFinishAnswered,
    kAbort,
    kCallFailed,
    kNodeRan,
    kNodeFailed,
    kWorkerLost,
    kReleased,
    kCancelled,
  };
  // Of a context at a worker.
  enum ContextState : uint8_t { kUnknown, kLive, kGone };
  enum ContextEvent : uint8_t {
    kOpened,
    kForward,
    kSends,
    kInputs,
    kPassMessage,
    kLetGo,
    kCleanup,
    kOverdue,
    kOriginLost,
    kPeerLost,
  };

  static simulation::CoverageTable table();
};

}  // namespace gradwire::pass_simulation
