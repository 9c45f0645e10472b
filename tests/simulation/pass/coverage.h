#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gradwire::pass_simulation {

// Which event met which state of the machines.
class Coverage {
 public:
  enum Machine : uint8_t { kParticipant, kRoot, kContext, kMachines };

  // Of a part in a pass.
  enum PartState : uint8_t {
    kNew,    // nothing was heard
    kWave,   // the wave is under way through it
    kWork,   // nodes or gradients are awaited
    kIdle,   // nothing is, but it has not ended
    kEnded,  // well
    kFailed,
    kPartStates
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
    kPartEvents
  };
  // Of a context at a worker.
  enum ContextState : uint8_t { kUnknown, kLive, kGone, kContextStates };
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
    kContextEvents
  };

  void hit(Machine machine, int state, int event) { ++counts_[machine][state][event]; }
  // A table for each machine.
  std::string print() const;
  // Pairs that never met, and are not on the list of those that cannot.
  std::vector<std::string> unreached() const;
  // Pairs on that list that met all the same.
  std::vector<std::string> reached_impossible() const;

 private:
  static constexpr int kMost = 20;
  std::array<std::array<std::array<uint64_t, kMost>, kPartStates>, kMachines> counts_{};
};

}  // namespace gradwire::pass_simulation
