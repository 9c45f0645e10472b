#pragma once

#include <string_view>

#include "gradwire/tools/launch/rendezvous/deliberate_bug.h"

namespace gradwire::rendezvous_simulation {

// The names of the deliberate bugs, for tests and for replay.
struct NamedBug {
  std::string_view name;
  rendezvous::DeliberateBug bug;
};
inline constexpr NamedBug kBugs[] = {
    {"ready_with_workers", rendezvous::DeliberateBug::kReadyWithWorkers},
    {"run_unready", rendezvous::DeliberateBug::kRunUnready},
    {"ignore_removal", rendezvous::DeliberateBug::kIgnoreRemoval},
    {"below_min", rendezvous::DeliberateBug::kBelowMin},
    {"above_max", rendezvous::DeliberateBug::kAboveMax},
    {"own_order", rendezvous::DeliberateBug::kOwnOrder},
    {"done_alone", rendezvous::DeliberateBug::kDoneAlone},
    {"reopen", rendezvous::DeliberateBug::kReopen},
    {"over_budget", rendezvous::DeliberateBug::kOverBudget},
    {"write_once", rendezvous::DeliberateBug::kWriteOnce},
    {"ignore_waiting", rendezvous::DeliberateBug::kIgnoreWaiting},
    {"wait_blindly", rendezvous::DeliberateBug::kWaitBlindly},
    {"no_pause_guard", rendezvous::DeliberateBug::kNoPauseGuard},
    {"forget_workers", rendezvous::DeliberateBug::kForgetWorkers},
};

}  // namespace gradwire::rendezvous_simulation
