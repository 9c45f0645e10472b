#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/coverage_table.h"

namespace gradwire::rendezvous_simulation {

// Counts the events of records, nodes and calls, by the phase of the job's record.
struct Coverage {
  enum State : uint8_t { kNone, kJoining, kRunning, kClosed };
  enum class What : uint8_t {
    kCreated,
    kEntered,
    kEnteredWaiting,
    kReady,
    kRunFull,
    kRunComplete,
    kRunLastCall,
    kRestartFailure,
    kRestartLost,
    kNextLeft,
    kNextGrown,
    kDone,
    kStoreServed,
    kSucceeded,
    kClosedFailure,
    kClosedLost,
    kClosedLeft,
    kClosedLeftJoining,
    kLostJoining,
    kLostWaiting,
    kLeftJoining,
    kLeftWaiting,
    kLetIn,
    kEnteredAgain,
    kRemovedWithWorkers,
    kEndedOk,
    kEndedAborted,
    kEndedTooLate,
    kEndedRankTaken,
    kEndedOtherSettings,
    kEndedTooFew,
    kEndedLeft,
    kEndedStoreLost,
    kAnswerLost,
    kChangeGivenUpTookEffect,
    kChangeLostRace,
  };

  static simulation::CoverageTable table();
};

}  // namespace gradwire::rendezvous_simulation
