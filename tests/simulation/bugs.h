#pragma once

#include <string_view>

#include "gradwire/rpc/deliberate_bug.h"

namespace gradwire::simulation {

// The names of the deliberate bugs, for tests and for replay.
struct NamedBug {
  std::string_view name;
  rpc::DeliberateBug bug;
};
inline constexpr NamedBug kBugs[] = {
    {"hear_the_dead", rpc::DeliberateBug::kHearTheDead},
    {"forget_deletes", rpc::DeliberateBug::kForgetDeletes},
    {"delete_for_others", rpc::DeliberateBug::kDeleteForOthers},
    {"delete_unconfirmed", rpc::DeliberateBug::kDeleteUnconfirmed},
    {"forget_children", rpc::DeliberateBug::kForgetChildren},
    {"no_fence", rpc::DeliberateBug::kNoFence},
    {"hasty_fence", rpc::DeliberateBug::kHastyFence},
    {"forget_death_in_fence", rpc::DeliberateBug::kForgetDeathInFence},
    {"no_tombstone", rpc::DeliberateBug::kNoTombstone},
    {"no_retry", rpc::DeliberateBug::kNoRetry},
    {"no_pause_guard", rpc::DeliberateBug::kNoPauseGuard},
    {"dead_accuse", rpc::DeliberateBug::kDeadAccuse},
    {"name_twice", rpc::DeliberateBug::kNameTwice},
    {"agree_alone", rpc::DeliberateBug::kAgreeAlone},
};

}  // namespace gradwire::simulation
