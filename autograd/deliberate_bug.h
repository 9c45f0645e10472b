#pragma once

namespace gradwire::autograd {

// Mistakes that the state machines can be built with, so that a test can show that the simulator notices each of them
// (tests/simulation/pass). In every other build the question is constant and costs nothing.
enum class DeliberateBug {
  kNone,
  // pass_state: what was shipped need not have arrived when a part ends.
  kEndWhileShipping,
  // A RUN that comes again counts again.
  kCountRunTwice,
  // A MARK is answered before those that its walk sent are.
  kAnswerMarkEarly,
  // What travels back to who sent the MARK, as NEEDED does, is not waited for.
  kForgetBackward,
  // Of the answers to MARK it is not taken over who takes part.
  kForgetParticipants,
  // A MARK that comes again before the first is answered is not answered.
  kAnswerFirstOnly,
  // What comes for a pass that has failed is served.
  kServeFailed,
  // FINISH is answered at once.
  kFinishAtOnce,
  // Of a planned pass only those are asked to finish that the root ships to.
  kAskNeighboursOnly,
  // ABORT is not passed on.
  kKeepAbort,
  // Who waits to hear of the end is not told of a failure.
  kFailSilently,
  // Only the loss of the root ends a pass.
  kIgnoreLostPartner,
  // context_table: a late message revives a context.
  kReviveContext,
  // Those to whom messages went do not hear of the end.
  kForgetTouched,
  // The watermark passes contexts that live.
  kHighWatermark,
};

#ifdef GRADWIRE_DELIBERATE_BUGS
inline DeliberateBug chosen_bug = DeliberateBug::kNone;
inline bool deliberate_bug(DeliberateBug bug) { return bug == chosen_bug; }
#else
constexpr bool deliberate_bug(DeliberateBug) { return false; }
#endif

}  // namespace gradwire::autograd
