#pragma once

namespace gradwire::rendezvous {

// Mistakes that the state machine can be built with, so that a test can show that the simulation notices each of them
// (tests/simulation/rendezvous). In every other build the question is constant and costs nothing.
enum class DeliberateBug {
  kNone,
  // A node says that it is ready while it still has workers.
  kReadyWithWorkers,
  // A round begins though not all are ready.
  kRunUnready,
  // A node that was removed goes on with its workers.
  kIgnoreRemoval,
  // The last call ends with fewer than min nodes.
  kBelowMin,
  // All that wait get in.
  kAboveMax,
  // Each node takes itself for the first.
  kOwnOrder,
  // The job has succeeded when one node is done.
  kDoneAlone,
  // A failure after the job has ended begins another round.
  kReopen,
  // A restart too many.
  kOverBudget,
  // What was written once is not written again, though it may have been lost.
  kWriteOnce,
  // Nobody lets the waiting in.
  kIgnoreWaiting,
  // Those who wait do not care for the participants.
  kWaitBlindly,
  // A node that was paused holds that time against the others.
  kNoPauseGuard,
  // The last look is enough: how a node ended is forgotten when it is removed.
  kForgetWorkers,
};

#ifdef GRADWIRE_DELIBERATE_BUGS
inline DeliberateBug chosen_bug = DeliberateBug::kNone;
inline bool deliberate_bug(DeliberateBug bug) { return bug == chosen_bug; }
#else
constexpr bool deliberate_bug(DeliberateBug) { return false; }
#endif

}  // namespace gradwire::rendezvous
