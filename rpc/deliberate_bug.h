#pragma once

namespace gradwire::rpc {

// Mistakes that the state machines can be built with, so that a test can show that the simulator notices each of them
// (tests/simulation). In every other build the question is constant and costs nothing.
enum class DeliberateBug {
  kNone,
  // rref/: a late message of a dead holder counts.
  kHearTheDead,
  // A delete is not remembered for the add that it overtook.
  kForgetDeletes,
  // Anybody may delete a fork.
  kDeleteForOthers,
  // A fork is deleted while the owner may not know it yet.
  kDeleteUnconfirmed,
  // A fork goes though a worker that it was passed on to has not confirmed.
  kForgetChildren,
  // The forks of a dead holder go at once.
  kNoFence,
  // A fence is answered while a reference from a dead worker is unregistered.
  kHastyFence,
  // A worker that dies during a fence is no longer waited for, and not fenced itself.
  kForgetDeathInFence,
  // A reference that the receiver says it never got may still be taken.
  kNoTombstone,
  // What was not answered is not sent again.
  kNoRetry,
  // membership/: a worker that was paused blames the others for its own silence.
  kNoPauseGuard,
  // A worker that was declared dead may declare others dead.
  kDeadAccuse,
  // Two may have one name.
  kNameTwice,
  // A worker that cannot reach the log agrees on a death alone.
  kAgreeAlone,
};

#ifdef GRADWIRE_DELIBERATE_BUGS
inline DeliberateBug chosen_bug = DeliberateBug::kNone;
inline bool deliberate_bug(DeliberateBug bug) { return bug == chosen_bug; }
#else
constexpr bool deliberate_bug(DeliberateBug) { return false; }
#endif

}  // namespace gradwire::rpc
